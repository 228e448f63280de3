"""What a distillation folder holds beside its translations, and its first file."""

from __future__ import annotations

from hmc.pipelines.folders.taken import First

REQUEST, TEACHER, IMPORTED = "distillation.json", "teacher", "checkpoint"
"""The first file; the folder of the teacher's bundle; that of the checkpoint that a MarianMT directory became."""
FIRST = First(REQUEST, 1, "teacher, text or search", may_exist=(IMPORTED,))

"""A small model that was trained, with text that it translates well: captions, English to German.

It is the embedded model of today. Tests of the demo itself take what `hmc.cli.demo_steps` names.
"""

from __future__ import annotations

from pathlib import Path

TRAINED = Path(__file__).parents[2] / "cli" / "hmc" / "cli" / "demo_data"
CHECKPOINT = TRAINED / "checkpoint"
ENGLISH, GERMAN = TRAINED / "test.en", TRAINED / "test.de"
"""240 captions, a line for each."""


def english(lines: int | None = None) -> list[str]:
    """The first captions in English; None: all."""
    return ENGLISH.read_text(encoding="utf-8").splitlines()[:lines]

"""The results of a study without weights: small files that stay with the project, so that a study may end elsewhere.

A training is made again only where something that needs its weights is left to do.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

RESULTS = ("measure/**/*.json", "compare/**/*.json", "score/*/bundle.json", "times.json")
"""What steps make of weights. It is put back into the folder of a study."""
LOGS = ("train/*/headmask.json", "train/*/log.jsonl")
"""What trainings leave beside weights. It is only read, because a training goes on in a folder that has logs."""


def keep(root: Path, kept: Path) -> None:
    """Copies results and logs of the study in `root` to `kept`."""
    _copy(root, kept, (*RESULTS, *LOGS))


def restore(kept: Path, root: Path) -> None:
    """Copies results from `kept` to where the study in `root` has none."""
    _copy(kept, root, RESULTS, replace=False)


def _copy(source: Path, target: Path, patterns: Iterable[str], *, replace: bool = True) -> None:
    for pattern in patterns:
        for file in source.glob(pattern):
            copy = target / file.relative_to(source)
            if replace or not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)

"""A run folder belongs to one run: nothing that somebody else put there is read as its own, or written over."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from hmc.artifact import checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.formats import check_replaceable
from hmc.artifact.tokenizer_files import EVERY
from hmc.training import state

RECIPE, REQUEST = "recipe.json", "request.json"
"""What a run of `hmc train`, and one of `hmc prune`, writes first."""
WRITTEN = (RECIPE, REQUEST, "state", "cache", "tensorboard", "log.jsonl")
TRAINING = (*WRITTEN, "checkpoints", "final", "layout.json", *EVERY)
PRUNING = (*WRITTEN, "nested", "nested-state", "trajectory.json")
RESULTS = ("state", "checkpoints", "final", "nested", "nested-state", "trajectory.json")
"""A folder with none of these, nor any checkpoint, is of a run that failed or was stopped before it had learned."""
STALE = {RECIPE: ("log.jsonl", "tensorboard", "layout.json", *EVERY), REQUEST: ("log.jsonl", "tensorboard")}
"""What such a run leaves and another one would take for its own; texts in `cache` are found by what they hold."""


def check_training_folder(out: Path) -> None:
    """Raises InvalidRequestError where a training run would write over, or read, what is not its own."""
    _check(out, RECIPE, TRAINING, ["final"])


def check_pruning_folder(out: Path, folders: Iterable[str]) -> None:
    """The same for a pruning run; folders: names of the checkpoints that it will write."""
    _check(out, REQUEST, PRUNING, ["nested", *folders])


def has_results(out: Path) -> bool:
    """True when a run has come to its first state or checkpoint; until then another run may take the folder over."""
    return any((out / name).exists() for name in RESULTS) or any(out.glob("*/config.json"))


def take_over(out: Path, first: str, text: str) -> None:
    """Writes `first`, which says what the run of this folder does; drops what is left of a run without results."""
    out.mkdir(parents=True, exist_ok=True)
    if (out / first).is_file() and not has_results(out):
        for name in STALE[first]:
            if (out / name).is_dir():
                shutil.rmtree(out / name)
            else:
                (out / name).unlink(missing_ok=True)
    (out / first).write_text(text)


def _check(out: Path, first: str, written: Iterable[str], checkpoints: list[str]) -> None:
    there = [name for name in dict.fromkeys((*written, *checkpoints)) if (out / name).exists()]
    if there and not (out / first).is_file():  # asked last: another process of the same run may have just written it
        raise InvalidRequestError(
            f"{out} holds {', '.join(there)}, and no {first} that says which run wrote it; choose another --out"
        )
    for name in ("state", "nested-state"):
        check_replaceable(out / name, state.FORMAT)
    for name in checkpoints:
        check_replaceable(out / name, checkpoint.FORMAT)

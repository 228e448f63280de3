"""A run folder belongs to one run: nothing that somebody else put there is read as its own, or written over."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hmc.artifact import checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.formats import check_replaceable
from hmc.artifact.tokenizer_files import MARIAN, TOKENIZER
from hmc.training import state

RECIPE, REQUEST = "recipe.json", "request.json"
"""What a run of `hmc train`, and one of `hmc prune`, writes first."""
WRITTEN = (RECIPE, REQUEST, "state", "cache", "tensorboard", "log.jsonl")
TRAINING = (*WRITTEN, "checkpoints", "final", "layout.json", TOKENIZER, *MARIAN)
PRUNING = (*WRITTEN, "nested", "nested-state", "trajectory.json")


def check_training_folder(out: Path) -> None:
    """Raises InvalidRequestError where a training run would write over, or read, what is not its own."""
    _check(out, RECIPE, TRAINING, ["final"])


def check_pruning_folder(out: Path, folders: Iterable[str]) -> None:
    """The same for a pruning run; folders: names of the checkpoints that it will write."""
    _check(out, REQUEST, PRUNING, ["nested", *folders])


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

"""Run folders: each belongs to one run. A run neither reads nor replaces files that another program put there."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from hmc.artifact.checkpoint import checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.storage.files import write_whole
from hmc.artifact.storage.formats import check_replaceable
from hmc.artifact.tokenizer.files import EVERY
from hmc.training.headmask import mask as masks
from hmc.training.runs import state

RECIPE, REQUEST = "recipe.json", "request.json"
"""The first file that `hmc train` and `hmc prune` write; it says what the run does."""
LOCK = "lock"
"""A file that the process of a run holds."""
LOGS = ("log.jsonl", "log-nested.jsonl", "tensorboard")
WRITTEN = (RECIPE, REQUEST, LOCK, "state", "cache", *LOGS)
TRAINING = (*WRITTEN, "checkpoints", "final", "layout.json", masks.FILE, *EVERY)
PRUNING = (*WRITTEN, "nested", "nested-state", "nested-checkpoints", "trajectory.json")
RESULTS = ("state", "checkpoints", "final", "nested", "nested-state", "nested-checkpoints", "trajectory.json")
"""Files that hold results. A folder with none of them and no checkpoint may be taken over by another run."""
STALE = {RECIPE: (*LOGS, "layout.json", masks.FILE, *EVERY), REQUEST: LOGS}
"""First file → files that a run without results leaves and the next run must not read. `cache` stays: its folders are
named by their contents."""


def check_training_folder(out: Path) -> None:
    """Raises InvalidRequestError when a training run would read or replace a file of another program."""
    _check(out, RECIPE, TRAINING, ["final"])


def check_pruning_folder(out: Path, folders: Iterable[str]) -> None:
    """Raises InvalidRequestError when a pruning run would read or replace a file of another program.

    folders: names of the checkpoints that the run will write.
    """
    _check(out, REQUEST, PRUNING, ["nested", *folders])


def has_results(out: Path) -> bool:
    """True when the folder holds a state or a checkpoint. Until then another run may take it over."""
    return any((out / name).exists() for name in RESULTS) or any(out.glob("*/config.json"))


_held: dict[Path, int] = {}
"""Lock file of a run folder → its descriptor."""


def hold(out: Path) -> None:
    """Keeps other processes out of a run folder until `release`, or until this one ends. Does nothing where the file
    system has no locks.

    Raises InvalidRequestError when another process is in it.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = (out / LOCK).resolve()
    held = _held.get(path)
    if held is not None and path.exists() and os.path.samestat(os.fstat(held), path.stat()):
        return  # to open and close it again would give the lock back
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            os.close(file)
            raise InvalidRequestError(
                f"another process is working in {out}; wait for it, or choose another --out"
            ) from None
    if held is not None:  # of a folder that was deleted since
        os.close(held)
    _held[path] = file


def release(out: Path) -> None:
    """Gives a folder back that `hold` took, if it did."""
    held = _held.pop((out / LOCK).resolve(), None)
    if held is not None:
        os.close(held)


def take_over(out: Path, first: str, text: str) -> None:
    """Writes `text` to the file `first`, RECIPE or REQUEST; removes what a former run without results left."""
    out.mkdir(parents=True, exist_ok=True)
    if (out / first).is_file() and not has_results(out):
        for name in STALE[first]:
            if (out / name).is_dir():
                shutil.rmtree(out / name)
            else:
                (out / name).unlink(missing_ok=True)
    write_whole(out / first, text)


def _check(out: Path, first: str, written: Iterable[str], checkpoints: list[str]) -> None:
    names = dict.fromkeys((*written, *checkpoints))
    present = [name for name in names if name != LOCK and (out / name).exists()]
    # `first` is looked for last: another process of the same run may just have written it.
    if present and not (out / first).is_file():
        raise InvalidRequestError(
            f"{out} holds {', '.join(present)}, and no {first} that says which run wrote it; choose another --out"
        )
    for name in ("state", "nested-state"):
        check_replaceable(out / name, state.FORMAT)
    for name in checkpoints:
        check_replaceable(out / name, checkpoint.FORMAT)

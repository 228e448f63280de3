"""Run folders: each belongs to one run. A run neither reads nor replaces files that another program put there."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import torch

from hmc.artifact.checkpoint import checkpoint
from hmc.artifact.errors import InvalidArtifactError, InvalidRequestError
from hmc.artifact.stopping import Stopped, stoppable
from hmc.artifact.storage.files import digest_problems, write_whole
from hmc.artifact.storage.formats import DIGESTS, check_replaceable
from hmc.artifact.tokenizer.files import EVERY
from hmc.training.data.parallel_text import corpus_names
from hmc.training.headmask import mask as masks
from hmc.training.runs import state
from hmc.training.runs.processes import is_first_process

RECIPE = "recipe.json"
REQUEST = "request.json"
"""The first file that `hmc train` and `hmc prune` write; it says what the run does."""
WHERE = "where"
"""Field of that file: the folder that its paths are relative to, and the run folder."""
CORPORA = ("data.train", "data.dev", "train", "dev")
PATHS = ("tokenizer.model", "model.start_from", "model.layout", "distill.teacher", "source")
"""Fields of recipes and requests that name texts; fields that name one file or folder."""
LOCK = "lock"
"""A file that the process of a run holds."""
LOGS = ("log.jsonl", "log-nested.jsonl", "log-control.jsonl", "tensorboard")
WRITTEN = (RECIPE, REQUEST, LOCK, "state", "cache", *LOGS)
LAYOUT = "layout.json"
"""The head layout that a run of `hmc train` keeps, where its recipe names one."""
KEPT = (LAYOUT, *EVERY)
"""Files that a training run writes once and reads when it resumes; their digests are kept beside them."""
TRAINING = (*WRITTEN, "checkpoints", "final", DIGESTS, masks.FILE, *KEPT)
PARTS = ("nested", "control")
"""Checkpoints that a pruning run may train after its levels."""
STATES = ("state", *(f"{part}-state" for part in PARTS))
OF_PARTS = tuple(map("".join, product(PARTS, ("", "-state", "-checkpoints"))))
PRUNING = (*WRITTEN, *OF_PARTS, "trajectory.json")
RESULTS = ("state", "checkpoints", "final", *OF_PARTS, "trajectory.json")
"""Files that hold results. A folder with none of them and no checkpoint may be taken over by another run."""
STALE = {RECIPE: (DIGESTS, *LOGS, masks.FILE, *KEPT), REQUEST: LOGS}
"""First file → files that a run without results leaves and the next run must not read. `cache` stays: its folders are
named by their contents."""


def check_training_folder(out: Path) -> None:
    """Raises InvalidRequestError when a training run would read or replace a file of another program."""
    _check(out, RECIPE, TRAINING, ["final"])


def check_kept(out: Path) -> None:
    """Raises InvalidArtifactError when the tokenizer or the layout of a training run is not as it was written.

    A folder of an earlier version has no digests, and is not checked.
    """
    if problems := digest_problems(out, KEPT):
        fix = "Put it back (the checkpoints of the run have its tokenizer too), or choose another --out."
        raise InvalidArtifactError(f"run folder {out}", problems, fix)


def check_pruning_folder(out: Path, folders: Iterable[str]) -> None:
    """Raises InvalidRequestError when a pruning run would read or replace a file of another program.

    folders: names of the checkpoints that the run will write.
    """
    _check(out, REQUEST, PRUNING, [*PARTS, *folders])


def has_results(out: Path) -> bool:
    """True when the folder holds a state or a checkpoint. Until then another run may take it over."""
    return any((out / name).exists() for name in RESULTS) or any(out.glob("*/config.json"))


def where(out: Path) -> list[str]:
    """Returns the value of WHERE: the working directory and the run folder."""
    return [str(Path.cwd()), str(out.resolve())]


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Compares the requests of two runs. Returns a line for each field that differs, such as `train.seed: 1 there, 2
    here`.

    before, now: JSON values of a recipe or a request, with WHERE. Names of files are equal when they lead to the same
    place on this machine, or to the same place beside the run folder: a folder that was moved goes on.
    """
    former = _flat(before)
    here = _flat(now)
    then = former.pop(WHERE)
    today = here.pop(WHERE)
    different = []
    for name in dict.fromkeys([*former, *here]):
        old = former.get(name)
        new = here.get(name)
        if old == new and name not in (*CORPORA, *PATHS):
            continue
        old_places = _places(name, old, then)
        new_places = _places(name, new, today)
        if not any(a == b for a, b in zip(old_places, new_places, strict=True)):
            different.append(f"{name}: {_shown(old)} there, {_shown(new)} here")
    return different


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields by their whole name, such as `train.seed`."""
    flat = dict[str, Any]()
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _places(name: str, value: Any, base: list[str]) -> tuple[Any, Any]:
    """What a field names: the place on this machine, and the place beside the run folder. base: see `where`."""
    if value is None or name not in (*CORPORA, *PATHS):
        return value, value
    folder, out = base
    whole = list[list[str]]()
    beside = list[list[str]]()
    for text in value if isinstance(value, list) else [value]:
        words = [Path(text)] if name in PATHS else corpus_names(text)
        places = [os.path.realpath(Path(folder) / word) for word in words]
        whole.append(places or [text])  # a data set on the hub has no place
        beside.append([os.path.relpath(place, out) for place in places] or [text])
    return whole, beside


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)


_held: dict[Path, int] = {}
"""Lock file of a run folder → its descriptor."""


def hold(out: Path) -> None:
    """Keeps other processes out of a run folder until `release`, or until this process ends. Does nothing if the file
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
                f"another process is working in {out}; wait for it, or choose another folder"
            ) from None
    if held is not None:  # of a folder that was deleted since
        os.close(held)
    _held[path] = file


def release(out: Path) -> None:
    """Releases the folder that `hold` took, if it took one."""
    held = _held.pop((out / LOCK).resolve(), None)
    if held is not None:
        os.close(held)


@contextmanager
def working_in(out: Path) -> Iterator[None]:
    """The work of a run in its folder, which is released at the end.

    SIGTERM and Ctrl-C end it, and raise Stopped, which says what is kept; in all processes but the first SystemExit.
    Its status is 0 in a process that Fabric has started: Fabric would kill the first process for any other.
    """

    def kept() -> str:
        if has_results(out):
            return f"the last state that was saved in {out} is kept; the same command goes on from there"
        return f"no update is saved in {out} yet; the same command begins with the first one"

    try:
        with stoppable(kept, is_first_process):
            yield
    except Stopped as stopped:
        if is_first_process():
            raise
        raise SystemExit(128 + stopped.number if torch.distributed.is_torchelastic_launched() else 0) from None
    finally:
        release(out)


def take_over(out: Path, first: str, text: str) -> None:
    """Writes `text` to the file `first`, RECIPE or REQUEST; removes the files of a former run without results."""
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
            f"{out} holds {', '.join(present)}, and no {first} that says which run wrote it; choose another folder"
        )
    for name in STATES:
        check_replaceable(out / name, state.FORMAT)
    for name in checkpoints:
        check_replaceable(out / name, checkpoint.FORMAT)

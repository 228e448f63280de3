"""Saved states, from which a run resumes exactly: safetensors and JSON, written atomically.

A state also tells by fingerprints whether a resumed run has the texts and models that it began with.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning_fabric import Fabric
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hmc.artifact.errors import InvalidArtifactError, InvalidRequestError
from hmc.artifact.git_lfs import IS_POINTER, is_pointer
from hmc.artifact.storage.files import digest_problems, replace_directory
from hmc.artifact.storage.formats import Format, read_json
from hmc.training.data.corpus import TokenCorpus
from hmc.training.data.parallel_text import DevText
from hmc.training.distillation.teacher import check_same_teacher
from hmc.training.runs.processes import (
    first_process_first,
    random_states,
    restore_random_state,
    saved_processes,
)

WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
RANDOM = "rng.safetensors"
PROGRESS = "progress.json"
FORMAT = Format("a training state", PROGRESS, lambda _: True, lambda _: (WEIGHTS, OPTIMIZER, RANDOM), digests=True)
"""Tells a state from other folders, so that `save_state` replaces nothing else."""
FIX = "Delete it to start the run anew."
Saved = TypeVar("Saved", bound="RunProgress")


@dataclass
class RunProgress:
    """How far a run has come. A saved state holds this beside weights, moments and random numbers."""

    step: int = 0
    """Updates done; in a run of several stages, within the stage."""
    epoch: int = 0
    index: int = 0
    """Batch within the epoch."""
    tally: list[float] = field(default_factory=list)
    """`Tally.state` since the last line of the log; empty in states of earlier versions."""
    corpus: str = ""
    """Fingerprint of the tokenised training text. Empty, as the next two, in states of earlier versions."""
    dev: str = ""
    """Fingerprint of the dev text."""
    source: str = ""
    """Digest of the checkpoint that is pruned or fine-tuned; empty in a run of `hmc train`."""
    teacher: str = ""
    """Digest of the teacher; empty without one, or when it is the model itself."""

    def fingerprints(self) -> dict[str, str]:
        """Returns the fingerprints of the inputs, with the teacher's if there is a teacher."""
        fingerprints = {"corpus": self.corpus, "dev": self.dev, "source": self.source}
        return fingerprints | ({"teacher": self.teacher} if self.teacher else {})


@dataclass(frozen=True)
class Inputs:
    """The texts and the models that a run begins with."""

    corpus: TokenCorpus
    dev: DevText
    source: str = ""
    """Digest of the checkpoint that is pruned or fine-tuned."""
    teacher: str = ""
    """Digest of the teacher; empty without one."""

    def note(self, progress: RunProgress) -> None:
        """Writes the fingerprints into `progress`."""
        progress.corpus = self.corpus.fingerprint
        progress.dev = self.dev.fingerprint
        progress.source = self.source
        progress.teacher = self.teacher

    def check_same(self, progress: RunProgress, state: Path) -> None:
        """Raises InvalidRequestError if the inputs differ from the inputs in `progress`, which was read from `state`.

        Notes the inputs in `progress` when they agree.
        """
        self.corpus.check_same(progress.corpus, state)
        self.dev.check_same(progress.dev, state)
        if progress.source and progress.source != self.source:
            raise InvalidRequestError(
                f"the checkpoint is not the one that {state} began with; restore that checkpoint, or choose another "
                "folder to prune the new one"
            )
        check_same_teacher(progress.teacher, self.teacher, state)
        self.note(progress)


def save_state(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any], fabric: Fabric
) -> None:
    """Writes weights, the optimiser's moments, random-number states and `progress` (JSON values) to the folder `path`.

    All processes must call it; the first one writes. Raises InvalidRequestError when `path` holds other files.
    """
    rng = random_states(fabric)
    with first_process_first(fabric):
        if fabric.is_global_zero:
            _write_state(path, model, optimizer, progress, rng)


def _write_state(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any], rng: dict[str, Tensor]
) -> None:
    optim = optimizer.state_dict()
    moments = {}
    for index, entry in optim["state"].items():
        for name, value in entry.items():
            moments[f"{index}.{name}"] = torch.as_tensor(value).detach().clone().contiguous()
    with replace_directory(path, FORMAT) as folder:
        weights = {name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()}
        save_file(weights, folder / WEIGHTS)
        save_file(moments, folder / OPTIMIZER)
        save_file(rng, folder / RANDOM)
        (folder / PROGRESS).write_text(json.dumps(progress, indent=1) + "\n")


def saved_progress(path: Path, kind: type[Saved]) -> Saved:
    """Returns the progress of the state in the folder `path`. Without a state it is the progress of a new run.

    Raises InvalidArtifactError when it is damaged, or of another version.
    """
    if not path.is_dir():
        return kind()
    problems = digest_problems(path, [PROGRESS])
    content, unreadable = read_json(path / PROGRESS)
    if problems or unreadable:
        raise InvalidArtifactError(f"training state {path}", problems or unreadable, FIX)
    return progress_from(kind, content, path)


def load_state(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, fabric: Fabric) -> dict[str, Any]:
    """Restores what `save_state` wrote; returns `progress`.

    Raises InvalidArtifactError when the state is damaged or of another model. Raises InvalidRequestError when another
    number of processes wrote it, because that number decides which batches are done.
    """
    if problems := digest_problems(path):
        raise InvalidArtifactError(f"training state {path}", problems, FIX)
    try:
        model.load_state_dict(load_file(path / WEIGHTS))
        moments = load_file(path / OPTIMIZER)
        rng = load_file(path / RANDOM)
        progress: dict[str, Any] = json.loads((path / PROGRESS).read_text())
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        files = [name for name in (WEIGHTS, OPTIMIZER, RANDOM, PROGRESS) if is_pointer(path / name)]
        problems = [f"{name} {IS_POINTER}" for name in files] or [str(error)]
        raise InvalidArtifactError(f"training state {path}", problems, FIX) from error
    if (processes := saved_processes(rng)) != fabric.world_size:
        raise InvalidRequestError(
            f"training state {path} was saved by {processes} process(es), and this run has {fabric.world_size}; "
            f"resume it with {processes}"
        )
    current = optimizer.state_dict()
    current["state"] = _unflatten(moments)
    optimizer.load_state_dict(current)
    restore_random_state(rng, fabric.global_rank)
    return progress


def progress_from(kind: type[Saved], saved: dict[str, Any], path: Path) -> Saved:
    """Makes a dataclass of the `progress` that `load_state` returned from `path`.

    Raises InvalidArtifactError when the fields do not match.
    """
    try:
        return kind(**saved)
    except TypeError as error:
        raise InvalidArtifactError(f"training state {path}", [f"another version wrote it: {error}"], FIX) from error


def _unflatten(moments: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in moments.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    return state

"""Saved states, from which a run resumes exactly: safetensors and JSON, written atomically."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning_fabric import Fabric
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hmc.artifact.errors import InvalidArtifactError, InvalidRequestError
from hmc.artifact.storage.files import replace_directory
from hmc.artifact.storage.formats import Format
from hmc.training.runs.processes import (
    first_process_first,
    random_states,
    restore_random_state,
    saved_processes,
)

WEIGHTS, OPTIMIZER, RANDOM, PROGRESS = (
    "weights.safetensors",
    "optimizer.safetensors",
    "rng.safetensors",
    "progress.json",
)
FORMAT = Format("a training state", PROGRESS, lambda _: True, lambda _: (WEIGHTS, OPTIMIZER, RANDOM))
"""Tells a state from other folders, so that `save_state` replaces nothing else."""
FIX = "Delete it to start the run anew."
Saved = TypeVar("Saved")


def save_state(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any], fabric: Fabric
) -> None:
    """Writes weights, Adam moments, random-number states and `progress` (JSON values) to the folder `path`.

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
    moments = {
        f"{index}.{name}": torch.as_tensor(value).detach().clone().contiguous()
        for index, entry in optim["state"].items()
        for name, value in entry.items()
    }
    with replace_directory(path, FORMAT) as folder:
        weights = {name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()}
        save_file(weights, folder / WEIGHTS)
        save_file(moments, folder / OPTIMIZER)
        save_file(rng, folder / RANDOM)
        (folder / PROGRESS).write_text(json.dumps(progress, indent=1) + "\n")


def load_state(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, fabric: Fabric) -> dict[str, Any]:
    """Restores what `save_state` wrote; returns `progress`.

    Raises InvalidArtifactError when the state is damaged or of another model. Raises InvalidRequestError when another
    number of processes wrote it, because that number decides which batches are done.
    """
    try:
        model.load_state_dict(load_file(path / WEIGHTS))
        moments = load_file(path / OPTIMIZER)
        rng = load_file(path / RANDOM)
        progress: dict[str, Any] = json.loads((path / PROGRESS).read_text())
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise InvalidArtifactError(f"training state {path}", [str(error)], FIX) from error
    if (processes := saved_processes(rng)) != fabric.world_size:
        raise InvalidRequestError(
            f"training state {path} is of {processes} process(es), this run has {fabric.world_size}; resume it with "
            f"{processes}"
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

"""Resumable training state on disk: safetensors + JSON, written whole or not at all, exact on resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hmc.artifact.errors import InvalidArtifactError
from hmc.artifact.files import replace_directory


def save_state(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any]) -> None:
    """Writes weights, Adam moments, random-number state and `progress` (JSON values)."""
    optim = optimizer.state_dict()
    moments = {
        f"{index}.{name}": torch.as_tensor(value).detach().clone().contiguous()
        for index, entry in optim["state"].items()
        for name, value in entry.items()
    }
    rng = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        rng["cuda"] = torch.cuda.get_rng_state()
    with replace_directory(path) as folder:
        weights = {name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()}
        save_file(weights, folder / "weights.safetensors")
        save_file(moments, folder / "optimizer.safetensors")
        save_file(rng, folder / "rng.safetensors")
        (folder / "progress.json").write_text(json.dumps(progress, indent=1) + "\n")


def load_state(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Restores everything `save_state` wrote; returns `progress`. Raises InvalidArtifactError."""
    try:
        model.load_state_dict(load_file(path / "weights.safetensors"))
        moments = load_file(path / "optimizer.safetensors")
        rng = load_file(path / "rng.safetensors")
        progress: dict[str, Any] = json.loads((path / "progress.json").read_text())
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidArtifactError(
            f"training state {path}", [str(error)], "Delete it to start the run anew."
        ) from error
    current = optimizer.state_dict()
    current["state"] = _unflatten(moments)
    optimizer.load_state_dict(current)
    torch.set_rng_state(rng["cpu"])
    if "cuda" in rng and torch.cuda.is_available():
        torch.cuda.set_rng_state(rng["cuda"])
    return progress


def _unflatten(moments: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in moments.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    return state

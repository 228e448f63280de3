"""Optional files of a checkpoint: gates, importance and metrics."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.heads import KINDS, HeadScores
from hmc.artifact.model.layers import stack_of

GATES, IMPORTANCE, METRICS = "gates.safetensors", "importance.json", "metrics.json"
EXTRAS = (GATES, IMPORTANCE, METRICS)


@dataclass
class Extras:
    """The contents of the optional files that a checkpoint has."""

    gates: HeadScores | None = None
    importance: HeadScores | None = None
    metrics: dict[str, Any] = field(default_factory=dict)


def read_extras(folder: Path, arch: Architecture) -> tuple[Extras, list[str]]:
    """The contents of the optional files in `folder`, and every problem of them. A file with a problem is left out."""
    found, problems = _read(folder, arch)
    return found, [f"{problem}; copy it again or delete it: a model runs without it" for problem in problems]


def _read(folder: Path, arch: Architecture) -> tuple[Extras, list[str]]:
    found, problems = Extras(), []
    if (folder / GATES).is_file():
        try:
            raw: Any = load_file(folder / GATES)
        except (SafetensorError, OSError) as error:
            problems.append(f"{GATES} is not readable: {error}")
        else:
            found.gates, wrong = _scores(GATES, raw, arch)
            problems += wrong
    for name in (IMPORTANCE, METRICS):
        if not (folder / name).is_file():
            continue
        try:
            raw = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"{name} is not JSON: {error}")
            continue
        if not isinstance(raw, dict):
            problems.append(f"{name} must be one JSON object")
        elif name == METRICS:
            found.metrics = raw
        else:
            found.importance, wrong = _scores(name, raw, arch)
            problems += wrong
    return found, problems


def write_extras(extras: Extras, folder: Path) -> None:
    """Writes a file for each field that is not empty."""
    if extras.gates is not None:
        save_file({k: np.ascontiguousarray(v, np.float32) for k, v in extras.gates.items()}, folder / GATES)
    if extras.importance is not None:
        scores = {k: [[float(x) for x in row] for row in v] for k, v in extras.importance.items()}
        (folder / IMPORTANCE).write_text(json.dumps(scores) + "\n")
    if extras.metrics:
        (folder / METRICS).write_text(json.dumps(extras.metrics, indent=1) + "\n")


def _scores(name: str, raw: dict[str, Any], arch: Architecture) -> tuple[HeadScores | None, list[str]]:
    """Reads a score for each head of the unpruned model, kind → `[layers, heads]`, and lists the problems."""
    scores, problems = {}, []
    for kind in KINDS:
        expected = (arch.depth(stack_of(kind)), arch.heads)
        if kind not in raw:
            problems.append(f"{name} has no scores of {kind}")
            continue
        try:
            scores[kind] = np.asarray(raw[kind], np.float32)
        except (ValueError, TypeError):
            problems.append(f"{name}: {kind} is not rows of numbers of one length")
            continue
        if scores[kind].shape != expected:
            problems.append(f"{name}: {kind} has shape {list(scores[kind].shape)}, expected {list(expected)}")
        elif not np.isfinite(scores[kind]).all():
            problems.append(f"{name}: {kind} holds NaN or infinity")
    return (None, problems) if problems else (scores, [])

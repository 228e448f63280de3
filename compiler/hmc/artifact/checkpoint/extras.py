"""Optional files of a checkpoint: metrics, and scores of its heads, each with a name by which heads can be ranked."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.git_lfs import why
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.heads import KINDS, HeadScores
from hmc.artifact.model.layers import stack_of
from hmc.artifact.storage.files import changed_file, write_whole
from hmc.artifact.storage.formats import read_json

GATES = "gates.safetensors"
IMPORTANCE = "importance.json"
SCORES = "scores.json"
METRICS = "metrics.json"
EXTRAS = (GATES, IMPORTANCE, SCORES, METRICS)
ScoreName = Literal["gates", "importance", "ablation", "relevance", "confidence"]
WRITTEN_BY: dict[ScoreName, str] = {
    "gates": "`hmc prune` on it",
    "importance": "`hmc analyze importance --save`",
    "ablation": "`hmc analyze ablate --save`",
    "relevance": "`hmc analyze lrp --save`",
    "confidence": "`hmc analyze confidence --save`",
}
"""Scores that a checkpoint may have of its heads, and what measures them. Heads of higher scores are kept.

`gates`: log α. `importance`: I_h. `ablation`: the loss that masking the head alone adds. `relevance`: its share of its
layer's relevance. `confidence`: its mean largest attention weight.
"""


@dataclass
class Extras:
    """The contents of the optional files that a checkpoint has."""

    gates: HeadScores | None = None
    importance: HeadScores | None = None
    scores: dict[ScoreName, HeadScores] = field(default_factory=dict)
    """The scores that have no file of their own, by their names."""
    metrics: dict[str, Any] = field(default_factory=dict)


def read_extras(folder: Path, arch: Architecture) -> tuple[Extras, list[str]]:
    """The contents of the optional files in `folder`, and every problem of them. A file with a problem is left out."""
    extras, problems = _read(folder, arch)
    return extras, [f"{problem}; copy it again or delete it: a model runs without it" for problem in problems]


def _read(folder: Path, arch: Architecture) -> tuple[Extras, list[str]]:
    extras = Extras()
    problems = []
    if (folder / GATES).is_file():
        try:
            raw: Any = load_file(folder / GATES)
        except (SafetensorError, OSError) as error:
            problems.append(f"{GATES} {why(folder / GATES, f'is not readable: {error}')}")
        else:
            extras.gates, wrong = _scores(GATES, raw, arch)
            problems += wrong
    for name in (IMPORTANCE, SCORES, METRICS):
        if not (folder / name).is_file():
            continue
        raw, wrong = read_json(folder / name)
        if wrong:
            problems += wrong
        elif name == METRICS:
            extras.metrics = raw
        elif name == SCORES:
            extras.scores, wrong = _named(raw, arch)
            problems += wrong
        else:
            extras.importance, wrong = _scores(name, raw, arch)
            problems += wrong
    return extras, problems


def _named(raw: dict[str, Any], arch: Architecture) -> tuple[dict[ScoreName, HeadScores], list[str]]:
    """Reads `scores.json`, and lists its problems. A score with a problem is left out."""
    known: dict[ScoreName, HeadScores] = {}
    problems = []
    for name, rows in raw.items():
        if name not in WRITTEN_BY or not isinstance(rows, dict):
            problems.append(f"{SCORES} holds {name!r}, which is no score of heads that this hmc knows")
            continue
        scores, wrong = _scores(f"{SCORES}: {name}", rows, arch)
        if scores is not None:
            known[name] = scores
        problems += wrong
    return known, problems


def write_extras(extras: Extras, folder: Path) -> None:
    """Writes a file for each field that is not empty."""
    if extras.gates is not None:
        save_file({k: np.ascontiguousarray(v, np.float32) for k, v in extras.gates.items()}, folder / GATES)
    if extras.importance is not None:
        (folder / IMPORTANCE).write_text(json.dumps(_rows(extras.importance)) + "\n")
    if extras.scores:
        rows = {name: _rows(scores) for name, scores in extras.scores.items()}
        (folder / SCORES).write_text(json.dumps(rows) + "\n")
    if extras.metrics:
        (folder / METRICS).write_text(json.dumps(extras.metrics, indent=1) + "\n")


def add_score(folder: Path, arch: Architecture, name: ScoreName, scores: HeadScores) -> Path:
    """Adds a score to the checkpoint in `folder`, in place of one of that name; returns the file, replaced atomically.

    `gates` are of `hmc prune` alone. Raises InvalidRequestError when the scores have other shapes than the heads of
    `arch`, or are not finite.
    """
    assert name != "gates"
    if problems := _scores(name, {str(kind): values for kind, values in scores.items()}, arch)[1]:
        raise InvalidRequestError(f"{'; '.join(problems)}: measure it again, on this checkpoint and in fp32")
    content: Any = _rows(scores)
    if name != "importance":
        others = read_extras(folder, arch)[0].scores
        content = {key: _rows(value) for key, value in others.items()} | {name: content}
    path = folder / (IMPORTANCE if name == "importance" else SCORES)
    with changed_file(folder, path.name):
        write_whole(path, json.dumps(content) + "\n", several=True)
    return path


def _rows(scores: HeadScores) -> dict[str, list[list[float]]]:
    return {kind: [[float(x) for x in row] for row in values] for kind, values in scores.items()}


def _scores(name: str, raw: dict[str, Any], arch: Architecture) -> tuple[HeadScores | None, list[str]]:
    """Reads a score for each head of the unpruned model, kind → `[layers, heads]`, and lists the problems."""
    scores = {}
    problems = []
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

"""Scores of heads that analyses measure, by the names with which a checkpoint keeps them and heads are ranked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hmc.artifact.checkpoint.checkpoint import FORMAT, copy_files
from hmc.artifact.checkpoint.extras import ScoreName, add_score
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import Head
from hmc.artifact.storage.files import replace_directory
from hmc.training.analysis.common.records import RelevanceData
from hmc.training.analysis.common.result import Result
from hmc.training.analysis.common.subject import Subject
from hmc.training.model.importance import scores_per_head


def _relevance(data: RelevanceData) -> list[float]:
    """Relevance of each head as a share of the logit, which compares heads of different layers."""
    through = {(layer.kind, layer.layer): layer.through_heads for layer in data.layers}
    return [row.relevance * through[row.kind, row.layer] for row in data.heads]


MEASURED: dict[str, tuple[ScoreName, Callable[[Any], list[float]]]] = {
    "importance": ("importance", lambda data: [row.importance for row in data.heads]),
    "ablate": ("ablation", lambda data: [row.delta_loss.value for row in data.heads]),
    "lrp": ("relevance", _relevance),
    "confidence": ("confidence", lambda data: [row.confidence for row in data.heads]),
}
"""Command whose result has a score of every head → its name, and the scores of its rows of `heads`."""


def scores_of(result: Result[Any]) -> dict[Head, float]:
    """Returns the score of every head that the result has, one of MEASURED."""
    _, values = MEASURED[result.command]
    return dict(zip((row.head for row in result.data.heads), values(result.data), strict=True))


def save_scores(subject: Subject, result: Result[Any], target: Path) -> None:
    """Adds the scores of a result to the checkpoint `target`: the subject's own, or a copy of it. Closed heads get 0.

    Raises InvalidRequestError where `target` is another path that exists, or a head has no score.
    """
    check_target(target, subject.path)
    measured = scores_of(result)
    arch = subject.checkpoint.architecture
    if missing := [str(head) for head in subject.layout.heads() if head not in measured]:
        raise InvalidRequestError(f"save: {', '.join(missing)} have no score; measure every head")
    values = torch.tensor([measured[head] for head in subject.layout.heads()])
    name = MEASURED[result.command][0]
    scores = scores_per_head(values, arch, subject.layout)
    if target.exists():
        add_score(target, arch, name, scores)
        return
    with replace_directory(target, FORMAT) as folder:
        copy_files(subject.path, folder)
        add_score(folder, arch, name, scores)


def check_target(target: Path, checkpoint: Path, results: Path | None = None) -> None:
    """Raises InvalidRequestError if `target` exists and is not `checkpoint`, or is the folder of the `results`."""
    if target.exists() and target.resolve() != checkpoint.resolve():
        raise InvalidRequestError(
            f"save {target}: it exists; choose a new path, or {checkpoint} itself, which keeps its weights and gets "
            "the scores: another checkpoint is never overwritten"
        )
    if results is not None and target.absolute() == results.absolute():
        raise InvalidRequestError(
            f"save {target}: it is the output folder too, and both would hold an importance.json; choose another"
        )

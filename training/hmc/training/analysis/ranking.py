"""Heads in order of importance: measured on a text, or read from an earlier result or a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmc.artifact.checkpoint import load_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.heads import Head, HeadScores, rank_heads
from hmc.training.analysis.head_rows import head_of
from hmc.training.analysis.importance import sentence_values
from hmc.training.analysis.result import read_result
from hmc.training.analysis.subject import Progress, Subject, Text, read_text, silent


@dataclass(frozen=True)
class Ranking:
    """Open heads of a checkpoint, most important first."""

    heads: tuple[Head, ...]
    origin: dict[str, Any]
    """Where the order comes from, for a result's settings."""


@dataclass(frozen=True)
class RankBy:
    """What a user asked heads to be ranked by: a file, or I_h on a text of its own, or on the text that is analysed."""

    scores: Path | None = None
    corpus: str | None = None
    sentences: int = 0
    """Limit on the sentences of `corpus`; 0: all."""

    def __post_init__(self) -> None:
        if self.scores is not None and self.corpus is not None:
            raise InvalidRequestError("give --scores FILE or --rank-data CORPUS, not both")

    def rank(self, subject: Subject, text: Text, progress: Progress = silent) -> Ranking:
        """Raises InvalidRequestError."""
        if self.scores is not None:
            return rank_by_file(subject, self.scores)
        if self.corpus is not None:
            text = read_text(self.corpus, subject.languages, self.sentences)
        return rank_by_text(subject, text, progress)


def rank_by_text(subject: Subject, text: Text, progress: Progress = silent) -> Ranking:
    """By I_h on a text; ties break by kind, layer, index."""
    values = sentence_values(subject, text, progress).mean(0)
    order = sorted(zip(subject.layout.heads(), values, strict=True), key=lambda item: -item[1])
    return Ranking(tuple(head for head, _ in order), {"by": "I_h", "on": text.source.model_dump()})


def rank_by_file(subject: Subject, path: Path) -> Ranking:
    """By I_h of a result of `hmc analyze importance`, or of a checkpoint directory that has importance inside.

    Raises InvalidRequestError when it lacks an open head.
    """
    if path.is_dir():
        scores = load_checkpoint(path).importance
        if scores is None:
            raise InvalidRequestError(
                f"checkpoint {path} has no importance; write it with `hmc analyze importance --save`"
            )
        return Ranking(_ranked(subject, scores, path), {"by": "I_h", "from": str(path)})
    result = read_result(path, ["importance"])
    known = {head_of(row): float(row["importance"]) for row in result.data["heads"]}
    missing = [str(head) for head in subject.layout.heads() if head not in known]
    if missing:
        raise InvalidRequestError(f"{path} has no importance of {', '.join(missing)}: measure this checkpoint's own")
    order = sorted(subject.layout.heads(), key=lambda head: -known[head])
    origin = {"by": "I_h", "checkpoint": result.checkpoints[0].digest, "on": result.corpora[0].model_dump()}
    return Ranking(tuple(order), origin)


def _ranked(subject: Subject, scores: HeadScores, path: Path) -> tuple[Head, ...]:
    for kind, values in scores.items():
        expected = (len(subject.layout[kind]), subject.checkpoint.architecture.heads)
        if values.shape != expected:
            raise InvalidRequestError(
                f"checkpoint {path}: importance of {kind} is {values.shape}, needed is {expected}"
            )
    return tuple(rank_heads(scores, subject.layout))

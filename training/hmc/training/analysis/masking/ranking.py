"""Rankings of heads by importance, measured on a text or read from an earlier result or a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmc.artifact.checkpoint.checkpoint import load_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import Head, HeadScores, rank_heads
from hmc.training.analysis.common.result import head_of, read_result
from hmc.training.analysis.common.subject import Progress, Subject, Text, read_text, silent
from hmc.training.analysis.masking.importance import sentence_values


@dataclass(frozen=True)
class Ranking:
    """Open heads of a checkpoint, most important first."""

    heads: tuple[Head, ...]
    origin: dict[str, Any]
    """Source of the order, for the settings of a result."""


@dataclass(frozen=True)
class RankBy:
    """How to rank heads: by a file with scores, by I_h on another text, or (default) by I_h on the analysed text."""

    scores: Path | None = None
    corpus: str | None = None
    sentences: int = 0
    """Limit on the sentences of `corpus`; 0: all."""

    def __post_init__(self) -> None:
        if self.scores is not None and self.corpus is not None:
            raise InvalidRequestError("give --scores FILE or --rank-data CORPUS, not both")

    def rank(self, subject: Subject, text: Text, progress: Progress = silent) -> Ranking:
        """The ranking of the subject's open heads; text: the analysed text. Raises as the two functions below."""
        if self.scores is not None:
            return rank_by_file(subject, self.scores)
        if self.corpus is not None:
            text = read_text(self.corpus, subject.languages, self.sentences)
        return rank_by_text(subject, text, progress)


def rank_by_text(subject: Subject, text: Text, progress: Progress = silent) -> Ranking:
    """Ranks by I_h on a text; ties by kind, layer, index. Raises as `sentence_values`."""
    values = sentence_values(subject, text, progress).mean(0)
    order = sorted(zip(subject.layout.heads(), values, strict=True), key=lambda item: -item[1])
    return Ranking(tuple(head for head, _ in order), {"by": "I_h", "on": text.source.model_dump()})


def rank_by_file(subject: Subject, path: Path) -> Ranking:
    """Ranks by I_h of a result of `hmc analyze importance`, or of a checkpoint directory that contains importance.

    Raises InvalidRequestError for a file or checkpoint that has no score for one of the open heads.
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
        raise InvalidRequestError(
            f"{path} has no importance of {', '.join(missing)}: measure the importance of this checkpoint"
        )
    order = sorted(subject.layout.heads(), key=lambda head: -known[head])
    origin = {"by": "I_h", "checkpoint": result.checkpoints[0].digest, "on": result.corpora[0].model_dump()}
    return Ranking(tuple(order), origin)


def _ranked(subject: Subject, scores: HeadScores, path: Path) -> tuple[Head, ...]:
    for kind, values in scores.items():
        expected = (len(subject.layout[kind]), subject.checkpoint.architecture.heads)
        if values.shape != expected:
            raise InvalidRequestError(
                f"checkpoint {path}: importance of {kind} has shape {values.shape}, needed is {expected}"
            )
    return tuple(rank_heads(scores, subject.layout))

"""Rankings of heads by a score, measured on a text or read from an earlier result or a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmc.artifact.checkpoint.checkpoint import load_checkpoint
from hmc.artifact.checkpoint.extras import WRITTEN_BY, ScoreName
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import KINDS, AttentionKind, Head, rank_heads
from hmc.artifact.model.importance import DEFAULT, Importance
from hmc.training.analysis.common.result import read_result
from hmc.training.analysis.common.scores import MEASURED, scores_of
from hmc.training.analysis.common.subject import Progress, Subject, Text, read_text, silent
from hmc.training.analysis.masking.importance import head_importance


@dataclass(frozen=True)
class Ranking:
    """Open heads of a checkpoint, most important first."""

    heads: tuple[Head, ...]
    origin: dict[str, Any]
    """Source of the order, for the settings of a result."""


@dataclass(frozen=True)
class RankBy:
    """How to rank heads: by a score in a file or in a checkpoint, or (default) by I_h on a text."""

    scores: Path | None = None
    """A result of `importance`, `ablate`, `lrp` or `confidence`, or a checkpoint with scores."""
    corpus: str | None = None
    """The text on which I_h is measured; None: the analysed text."""
    sentences: int = 0
    """Limit on the sentences of `corpus`; 0: all."""
    name: ScoreName | None = None
    """The score of a checkpoint, by default of the analysed one; with `scores` by default its importance."""
    how: Importance = DEFAULT
    """The I_h that is measured."""
    kinds: tuple[AttentionKind, ...] = KINDS
    """Kinds of the heads that are ranked; all others stay open."""

    def __post_init__(self) -> None:
        setting = "rank_by" if self.name is not None else None
        if self.scores is not None:
            setting = "scores"
        if setting and self.corpus is not None:
            raise InvalidRequestError(f"give {setting} or rank_data, not both")
        if setting and self.how != DEFAULT:
            raise InvalidRequestError(f"importance: it says how to measure what {setting} names; give one of the two")

    def rank(self, subject: Subject, text: Text, progress: Progress = silent) -> Ranking:
        """The ranking of the subject's open heads; text: the analysed text. Raises as the functions below."""
        every = self._rank(subject, text, progress)
        if self.kinds == KINDS:
            return every
        heads = tuple(head for head in every.heads if head.kind in self.kinds)
        return Ranking(heads, every.origin | {"scope": list(self.kinds)})

    def _rank(self, subject: Subject, text: Text, progress: Progress) -> Ranking:
        if self.scores is not None and not self.scores.is_dir():
            return rank_by_result(subject, self.scores, self.name)
        if self.scores is not None or self.name is not None:
            return rank_by_checkpoint(subject, self.scores or subject.path, self.name or "importance")
        if self.corpus is not None:
            text = read_text(self.corpus, subject.languages, self.sentences)
        return rank_by_text(subject, text, self.how, progress)


def rank_by_text(subject: Subject, text: Text, how: Importance = DEFAULT, progress: Progress = silent) -> Ranking:
    """Ranks by I_h on a text; ties by kind, layer, index. Raises as `sample_values`."""
    values, _ = head_importance(subject, text, how, progress)
    order = sorted(zip(subject.layout.heads(), values, strict=True), key=lambda item: -item[1])
    origin = {"by": "I_h", "importance": str(how), "on": text.source.model_dump()}
    return Ranking(tuple(head for head, _ in order), origin)


def rank_by_result(subject: Subject, path: Path, name: ScoreName | None = None) -> Ranking:
    """Ranks by the score that a result of an analysis has (`common.scores.MEASURED`).

    name: the score that is required. Raises InvalidRequestError for a result of another score, or without one of the
    open heads.
    """
    result = read_result(path, list(MEASURED))
    measured = MEASURED[result.command][0]
    if name not in (None, measured):
        raise InvalidRequestError(f"{path} has the score {measured}, not {name}; leave rank_by out, or give another")
    known = scores_of(result)
    missing = [str(head) for head in subject.layout.heads() if head not in known]
    if missing:
        raise InvalidRequestError(
            f"{path} has no {measured} of {', '.join(missing)}: measure the {measured} of this checkpoint"
        )
    order = sorted(subject.layout.heads(), key=lambda head: -known[head])
    how = {"importance": result.settings["importance"]} if "importance" in result.settings else {}
    origin = {"by": _called(measured), **how, "checkpoint": result.checkpoints[0].digest}
    return Ranking(tuple(order), origin | {"on": result.corpora[0].model_dump()})


def rank_by_checkpoint(subject: Subject, path: Path, name: ScoreName) -> Ranking:
    """Ranks by a score of a checkpoint. Raises InvalidRequestError if it has no such score, or scores of other
    heads."""
    checkpoint = load_checkpoint(path)
    scores = checkpoint.score(name)
    if scores is None:
        raise InvalidRequestError(f"checkpoint {path} has no {name}; write it with {WRITTEN_BY[name]}")
    for kind, values in scores.items():
        expected = (len(subject.layout[kind]), subject.checkpoint.architecture.heads)
        if values.shape != expected:
            raise InvalidRequestError(
                f"checkpoint {path}: {name} of {kind} has shape {values.shape}, needed is {expected}"
            )
    measured = set(checkpoint.layout.heads())  # log α is kept of heads that were closed, too
    if name != "gates" and (missing := [str(head) for head in subject.layout.heads() if head not in measured]):
        raise InvalidRequestError(
            f"checkpoint {path} has no {name} of {', '.join(missing)}, which are closed in it: measure the {name} of "
            "the checkpoint that is ranked"
        )
    return Ranking(tuple(rank_heads(scores, subject.layout)), {"by": _called(name), "from": str(path)})


def _called(name: ScoreName) -> str:
    return "I_h" if name == "importance" else name

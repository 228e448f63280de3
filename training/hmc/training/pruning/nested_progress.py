"""How far nested fine-tuning has come, and the dev scores of its levels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hmc.training.model.evaluate import Scores


@dataclass
class NestedProgress:
    """How far a run has come: what a saved state holds besides weights, moments and random numbers."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    """Batch within the epoch."""
    steps: int = 0
    """Updates asked for; 0 in states of earlier versions."""
    corpus: str = ""
    """Fingerprint of the tokenised training text. Empty, as the next two, in states of earlier versions."""
    dev: str = ""
    """Fingerprint of the dev text."""
    source: str = ""
    """Digest of the checkpoint that is fine-tuned."""
    teacher: str = ""
    """Digest of the teacher; empty without one, or when it is the model itself."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    """`{"step", "bleu"}` of every dev evaluation; BLEU is the mean over the levels."""
    ranking: dict[str, list[list[float]]] = field(default_factory=dict)
    """Scores of the heads; empty in states of earlier versions."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of nested fine-tuning and of distillation; empty in states of earlier versions."""


@dataclass(frozen=True)
class LevelScores:
    """Dev scores of every level."""

    by_heads: dict[int, Scores]
    """Number of heads → scores."""

    @property
    def bleu(self) -> float:
        """The mean BLEU over the levels."""
        return sum(scores.bleu for scores in self.by_heads.values()) / len(self.by_heads)

    def to_json(self) -> dict[str, Any]:
        """Returns the scores of N heads as `dev_hN`."""
        return {f"dev_h{heads}": scores.to_json() for heads, scores in self.by_heads.items()}

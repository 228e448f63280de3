"""The levels of nested fine-tuning: how heads are ranked, and which levels an update trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.budgets import HeadBudget
from hmc.artifact.model.heads import BLIND, KINDS, AttentionKind, HeadLayout, HeadScores, rank_heads, select_heads
from hmc.training.pruning.settings import NestedSection

OPEN_BONUS = 100.0
"""Added to the score of a head for every budget that kept it, so that heads of smaller budgets rank first."""


def nested_ranking(pruned: Sequence[Checkpoint]) -> HeadScores:
    """Scores heads by how many of the pruned checkpoints kept them, then by log α of the first checkpoint.

    pruned: checkpoints of falling budgets, written by `hmc prune`. Returns kind → `[layers, heads]`. Raises
    InvalidRequestError when a checkpoint has no log α.
    """
    first = pruned[0]
    if any(c.gates is None for c in pruned) or first.gates is None:
        raise InvalidRequestError("nested fine-tuning ranks heads by log α: give checkpoints written by `hmc prune`")
    scores = {kind: np.tanh(np.array(first.gates[kind]) / 10).astype(np.float32) for kind in KINDS}
    for checkpoint in pruned:
        for head in checkpoint.layout.heads():
            scores[head.kind][head.layer, head.index] += OPEN_BONUS
    return scores


def ranking_without_closing(
    source: Checkpoint, heads: str, importance: Callable[[], HeadScores]
) -> dict[AttentionKind, np.ndarray]:
    """Scores the heads of `source`, of which no gates were closed; kind → `[layers, heads]`.

    heads: as `NestedSection.heads`. importance: measures I_h; called only where it is needed. Raises
    InvalidRequestError when the checkpoint has no log α and `heads` asks for it.
    """
    if heads in ("gates", "both") and source.gates is None:
        raise InvalidRequestError(
            f"nested.heads {heads}: it ranks heads by log α, and this checkpoint has none: use importance "
            "or checkpoints"
        )
    rankings: list[HeadScores] = []
    if heads in ("gates", "both") and source.gates is not None:
        rankings.append(source.gates)
    if heads in ("importance", "both"):
        rankings.append(importance())
    total = {kind: np.zeros_like(np.asarray(rankings[0][kind], np.float32)) for kind in KINDS}
    for scores in rankings:
        for place, head in enumerate(rank_heads(scores, source.layout)):
            total[head.kind][head.layer, head.index] -= place / len(rankings)
    return total


class Levels:
    """Head layouts that the updates of a run train. They depend on (seed, update) alone."""

    def __init__(
        self, layout: HeadLayout, ranking: HeadScores, budgets: Sequence[int], settings: NestedSection, seed: int,
        steps: int,
    ) -> None:  # fmt: skip
        """layout: all heads. budgets: falling numbers of heads, the first of them all. steps: updates of the run.

        Raises InvalidRequestError where the smallest level, which the others contain, has no cross-attention.
        """
        self.layout = layout
        self.ranking = ranking
        self.budgets = list(budgets)
        self.settings = settings
        self.seed = seed
        self.steps = steps
        if not self.layout_of(self.budgets[-1]).sees_source:
            raise InvalidRequestError(f"nested level of {self.budgets[-1]} heads: {BLIND}")

    def layout_of(self, heads: int) -> HeadLayout:
        """Returns the level of that many heads."""
        return select_heads(self.ranking, self.layout, heads)

    @property
    def scored(self) -> list[int]:
        """Numbers of heads of the levels whose dev scores choose the checkpoints."""
        return self.budgets[-1:] if self.settings.levels == "smallest" else self.budgets

    def budgets_at(self, step: int) -> list[int]:
        """Returns the number of heads of every level at update `step` (from 1), while they shrink."""
        part = self.settings.shrink * self.steps
        done = 1.0 if step >= part else step / part
        return [round(self.layout.total + (budget - self.layout.total) * done) for budget in self.budgets]

    def trained(self, step: int) -> list[int]:
        """Returns the numbers of heads that update `step` trains, the largest first."""
        draw = np.random.default_rng([self.seed, step])
        budgets = self.budgets_at(step)
        if self.settings.levels == "smallest":
            return [budgets[-1]]
        if self.settings.levels == "one":
            return [budgets[int(draw.integers(len(budgets)))]]
        largest = budgets[0]
        smallest = budgets[-1]
        between = budgets[1:-1]
        if self.settings.between == "any":
            between = list(range(smallest + 1, largest))
        some = [between[int(draw.integers(len(between)))]] if between else []
        return [largest, *some, *([smallest] if len(budgets) > 1 else [])]


def numbers_of(targets: Sequence[HeadBudget], heads: int) -> list[int]:
    """Returns falling numbers of heads of the whole model. None: the whole model is trained alone, as a control for its
    levels.

    heads: of the model. Raises InvalidRequestError for other budgets.
    """
    numbers = [budget.heads for budget in targets]
    by_kind = any(budget.kinds != KINDS or len(budget.parts) > 1 for budget in targets)
    if by_kind or sorted({heads, *numbers}, reverse=True) != [heads, *numbers]:
        raise InvalidRequestError(
            f"nested levels need falling numbers of heads of the whole model below its {heads}, such as 72,36: not "
            f"{', '.join(map(str, targets))}"
        )
    return numbers

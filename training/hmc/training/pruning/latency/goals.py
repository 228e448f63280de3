"""What a run that prunes to latencies is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.latency import LatencyTable, Sizes

Measure = Callable[[Checkpoint], float]
"""Milliseconds of a model on this machine, as the table counts them."""


@dataclass(frozen=True)
class LatencyGoal:
    """One latency to reach."""

    name: str
    """Name of the checkpoint that reaches it, such as `2x` or `12ms`."""
    ms: float
    """Milliseconds of one request of the table's setting."""


@dataclass(frozen=True)
class LatencyPlan:
    """The table, the latencies to reach, and how models are measured on the way."""

    table: LatencyTable
    goals: tuple[LatencyGoal, ...]
    """Falling."""
    measure: Measure | None = None
    """None: nothing is measured, and the table is believed."""

    def check(self, checkpoint: Checkpoint) -> None:
        """Raises InvalidRequestError when the table is of another model, or a goal cannot be reached or is none."""
        if self.table.architecture != checkpoint.architecture:
            raise InvalidRequestError(
                "the latency table was measured on a model of another architecture; leave --latency-table out to "
                "measure this one"
            )
        sizes = Sizes.of(checkpoint.layout, checkpoint.ffn_widths, checkpoint.removed_layers)
        now, least = self.table.observed_ms(sizes), self.table.floor_ms(sizes)
        for goal in self.goals:
            if goal.ms >= now:
                raise InvalidRequestError(
                    f"{goal.name}: the model takes {now:.2f} ms already, by the latency table; ask for less"
                )
            if goal.ms <= least:
                raise InvalidRequestError(
                    f"{goal.name}: {goal.ms:.2f} ms cannot be reached. What no pruning saves (embeddings, output "
                    f"projection, search, one head) takes {least:.2f} ms of {now:.2f} ms: ask for less than "
                    f"{now / least:.2f}x, or prune a model with a smaller vocabulary or d_model"
                )
        if any(slow.ms <= fast.ms for slow, fast in pairwise(self.goals)):
            raise InvalidRequestError("give latency targets from the slowest to the fastest, each of them once")

    def request(self) -> dict[str, Any]:
        """What a run folder keeps of the plan, to tell whether it belongs to the same request."""
        goals = {goal.name: goal.ms for goal in self.goals}
        return {"goals": goals, "setting": self.table.setting.model_dump(mode="json")}


def goals_of(speedups: Sequence[float], milliseconds: Sequence[float], whole_ms: float) -> tuple[LatencyGoal, ...]:
    """Makes goals of speed-ups over the model's own latency `whole_ms`, or of latencies; the slowest first."""
    goals = [LatencyGoal(f"{speedup:g}x", whole_ms / speedup) for speedup in speedups]
    goals += [LatencyGoal(f"{ms:g}ms", ms) for ms in milliseconds]
    return tuple(sorted(goals, key=lambda goal: -goal.ms))

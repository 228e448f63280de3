"""Which level serves a request: the five selectors and what they mean. Pure functions of what is loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from hmc.artifact.bundle import Level
from hmc.artifact.errors import InvalidRequestError, LevelNotFoundError
from hmc.serving.latency import LatencyWindow
from hmc.serving.options import check_text, whole

PRECISION_RANK = {"fp32": 0, "fp16": 1, "bf16": 2, "int8": 3, "int4": 4}
RECENT_S = 30.0
"""`auto` judges a level by its latency of the last so many seconds, so that a level it left is tried again."""
ENOUGH_REQUESTS = 20
"""Fewer measured requests than this say nothing about a 95th percentile."""


@dataclass(frozen=True)
class Selector:
    """How a request chooses its level: at most one field is set; none means the default level.

    Raises InvalidRequestError on values out of range and on more than one choice.
    """

    name: str | None = None
    """The level of this name."""
    max_heads: int | None = None
    """The level with the most open heads, at most this many."""
    max_bleu_drop: float | None = None
    """The level with the fewest heads that loses at most this many BLEU points."""
    latency_budget_ms: int | None = None
    """The best level whose 95th percentile latency is within this many milliseconds."""
    auto: bool = False
    """The best level under the present load."""

    def __post_init__(self) -> None:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        chosen = [name for name, value in values.items() if value is not None and value is not False]
        if len(chosen) > 1:
            raise InvalidRequestError(f"level selector: {' and '.join(chosen)} exclude each other; give one")
        if self.name is not None:
            check_text(self.name, "level")
        if self.max_heads is not None:
            whole("max_heads", self.max_heads, 0)
        if self.max_bleu_drop is not None and not (self.max_bleu_drop >= 0 and math.isfinite(self.max_bleu_drop)):
            raise InvalidRequestError(f"max_bleu_drop {self.max_bleu_drop}: choose 0 or more BLEU points")
        if self.latency_budget_ms is not None:
            whole("latency_budget_ms", self.latency_budget_ms, 1)

    @classmethod
    def of(cls, level: str | Selector | None) -> Selector:
        """A level's name, a selector, or None for the default level, as a selector."""
        return level if isinstance(level, Selector) else cls(name=level)


@dataclass(frozen=True)
class AutoPolicy:
    """When `auto` leaves a level for the next one. Raises InvalidRequestError on values out of range."""

    max_pending: int = 64
    """Texts queued or running at a level before `auto` steps down; for calls in a hurry, such texts."""
    target_ms: float | None = None
    """95th percentile latency to keep, in milliseconds; None looks at the queue alone."""

    def __post_init__(self) -> None:
        if self.max_pending < 1:
            raise InvalidRequestError(f"auto: {self.max_pending} texts pending: choose 1 or more")
        if self.target_ms is not None and not self.target_ms > 0:
            raise InvalidRequestError(f"auto: a target of {self.target_ms:g} ms: choose more than 0")


@dataclass(frozen=True)
class Candidate:
    """A level that a selector may choose."""

    level: Level
    pending: int = 0
    """Texts queued or running there that a new one would wait for."""
    measured: LatencyWindow | None = None
    """Its latency on this server; None where it is not loaded."""

    def p95_ms(self) -> float | None:
        """Measured here if there are enough requests, otherwise as the bundle records it for one sentence, otherwise
        None."""
        here = self.measured.summary() if self.measured else None
        if here and here.requests >= ENOUGH_REQUESTS:
            return here.p95_ms
        recorded = self.level.latency
        return recorded.p95_ms if recorded and recorded.batch == 1 else None


def rank(level: Level) -> tuple[int, int, int]:
    """Sorts levels from the best to the cheapest: most open heads first, then most parameters, then the highest
    precision."""
    return -level.heads, -level.parameters, PRECISION_RANK[level.precision]


def runs_on(device: str, level: Level) -> bool:
    """Whether a level's graphs are for this device: 16-bit ones for cuda, the others for cpu, any for auto."""
    kind = device.partition(":")[0]
    return kind == "auto" or (kind == "cuda") == level.on_cuda


def choose(selector: Selector, candidates: Sequence[Candidate], policy: AutoPolicy) -> Level:
    """The candidate that `selector` means, for every selector but a name and the default.

    Raises LevelNotFoundError that says which candidate comes nearest, or what has to be measured first.
    """
    ranked = sorted(candidates, key=lambda c: rank(c.level))
    if selector.max_heads is not None:
        return _at_most(selector.max_heads, ranked)
    if selector.max_bleu_drop is not None:
        return _cheapest_within(selector.max_bleu_drop, ranked)
    if selector.latency_budget_ms is not None:
        return _within_budget(selector.latency_budget_ms, ranked)
    return _auto(ranked, policy)


def _at_most(heads: int, ranked: Sequence[Candidate]) -> Level:
    for candidate in ranked:
        if candidate.level.heads <= heads:
            return candidate.level
    smallest = ranked[-1].level
    raise LevelNotFoundError(
        f"no level here has at most {heads} heads; the smallest is {smallest.name!r} with {smallest.heads}"
    )


def _cheapest_within(drop: float, ranked: Sequence[Candidate]) -> Level:
    measured = [(-c.level.quality.bleu_delta, c.level) for c in ranked if c.level.quality]
    if not measured:
        raise LevelNotFoundError(
            "max_bleu_drop: no level here has a recorded quality; compile the bundle with `--eval SRC REF`"
        )
    fitting = [level for loss, level in measured if loss <= drop]
    if not fitting:
        loss, level = min(measured, key=lambda x: x[0])
        raise LevelNotFoundError(f"no level loses at most {drop:g} BLEU; the nearest is {level.name!r} with {loss:.2f}")
    return min(fitting, key=lambda level: (level.heads, level.bytes))


def _within_budget(budget_ms: int, ranked: Sequence[Candidate]) -> Level:
    measured = [(p95, c.level) for c in ranked if (p95 := c.p95_ms()) is not None]
    if not measured:
        raise LevelNotFoundError(
            "latency_budget_ms: no level has a measured latency of single sentences; it has one after "
            f"{ENOUGH_REQUESTS} requests to a server, or recorded with `hmc bench --batch 1 --record`"
        )
    for p95, level in measured:
        if p95 <= budget_ms:
            return level
    p95, level = min(measured, key=lambda x: x[0])
    raise LevelNotFoundError(f"no level answers within {budget_ms} ms; the fastest is {level.name!r} with {p95:.0f} ms")


def _auto(ranked: Sequence[Candidate], policy: AutoPolicy) -> Level:
    for candidate in ranked:
        if candidate.pending < policy.max_pending and _keeps_target(candidate, policy):
            return candidate.level
    return min(reversed(ranked), key=lambda c: c.pending).level


def _keeps_target(candidate: Candidate, policy: AutoPolicy) -> bool:
    if policy.target_ms is None or candidate.measured is None:
        return True
    recent = candidate.measured.summary(within_s=RECENT_S)
    return recent is None or recent.requests < ENOUGH_REQUESTS or recent.p95_ms <= policy.target_ms

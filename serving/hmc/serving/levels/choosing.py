"""Chooses the level that serves a request. Pure functions: they only read the candidates that they are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hmc.artifact.bundle.manifest import Level
from hmc.artifact.bundle.order import ladder
from hmc.artifact.errors import LevelNotFoundError
from hmc.artifact.precisions import PRECISIONS
from hmc.serving.levels.latency import LatencyWindow
from hmc.serving.requests.selectors import Selector


@dataclass(frozen=True)
class LevelCandidate:
    """A level that a selector may choose, with its present load."""

    level: Level
    pending: int = 0
    """Texts queued or running there for which a new text would wait."""
    p95_ms: float | None = None
    """The 95th percentile of latency that the request would have there now, in milliseconds. None if unknown."""
    recent: LatencyWindow | None = None
    """Its latency in the last moments, of every text. None if it is not loaded."""
    calls: LatencyWindow | None = None
    """What its interactive calls of the last moments would have taken with a single sentence. None if it is not loaded.
    """
    expected_s: float | None = None
    """Seconds that a new text would take there now. None if unknown."""
    failed: bool = False
    """Whether it failed and has not answered a text since."""


def runs_on(device: str, level: Level) -> bool:
    """Whether the graphs of a level are made for this device (`auto`, `cpu`, `cuda`, `cuda:N`, or several of the last).

    Its precision decides (`hmc.artifact.precisions`). Every level fits `auto`, and also an unknown name: loading the
    level then reports the name.
    """
    kind = device.split(",", maxsplit=1)[0].strip().partition(":")[0]
    return kind not in ("cpu", "cuda") or kind == PRECISIONS[level.precision].device


def choose(selector: Selector, candidates: Sequence[LevelCandidate]) -> Level:
    """Chooses a candidate by any selector except a name and the default, by the order of levels
    (`hmc.artifact.bundle.order`): one that another fitting candidate beats is not chosen. `auto` gives the best level,
    which is right without load; servers use `AutoController`.

    Raises LevelNotFoundError if no candidate fits. Its message names the nearest candidate, or the measurement that is
    missing.
    """
    if not candidates:
        raise LevelNotFoundError("no level of this model can run on the device of this server")
    if selector.max_heads is not None:
        return _at_most(selector.max_heads, [c.level for c in candidates])
    if selector.max_bleu_drop is not None:
        return _fastest_within(selector.max_bleu_drop, [c.level for c in candidates])
    if selector.latency_budget_ms is not None:
        return _within_budget(selector.latency_budget_ms, candidates)
    return ladder([c.level for c in candidates])[0].level


def _at_most(heads: int, levels: Sequence[Level]) -> Level:
    if fitting := [level for level in levels if level.heads <= heads]:
        return ladder(fitting)[0].level
    smallest = min(levels, key=lambda level: level.heads)
    raise LevelNotFoundError(
        f"no level here has at most {heads} heads; the smallest is {smallest.name!r} with {smallest.heads}"
    )


def _fastest_within(drop: float, levels: Sequence[Level]) -> Level:
    steps = ladder(levels)
    losses = [(step.loss, step) for step in steps if step.loss is not None]
    if not losses:
        raise LevelNotFoundError(
            "max_bleu_drop: no level here has a recorded quality; compile the bundle with `--eval SRC REF`"
        )
    fitting = [step.level for loss, step in losses if loss <= drop]
    if fitting:
        return fitting[-1]
    loss, step = min(losses, key=lambda x: x[0])
    raise LevelNotFoundError(f"no level loses at most {drop:g} BLEU; the nearest is {step.name!r} with {loss:.2f}")


def _within_budget(budget_ms: int, candidates: Sequence[LevelCandidate]) -> Level:
    places = {step.name: place for place, step in enumerate(ladder([c.level for c in candidates]))}
    ranked = sorted((c for c in candidates if c.level.name in places), key=lambda c: places[c.level.name])
    measured = [(round(c.p95_ms, 1), c.level) for c in ranked if c.p95_ms is not None]  # as it is printed
    for p95, level in measured:
        if p95 <= budget_ms:
            return level
    if not measured:
        raise LevelNotFoundError(
            "latency_budget_ms: no level has a measured latency; a server measures it in its first requests, and `hmc "
            "bench --batch 1 --record` records the latency of single sentences"
        )
    p95, level = min(measured, key=lambda x: x[0])
    raise LevelNotFoundError(
        f"no level answers a request of this size within {budget_ms} ms now; the fastest is {level.name!r} with about "
        f"{p95:g} ms"
    )

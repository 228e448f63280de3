"""The search for a head budget: which number of heads keeps a limit, with as few levels tried as possible.

The search itself sees a level only as its number of heads and what was measured of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hmc.artifact.bundle.manifest import Quality
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.precisions import Precision
from hmc.benchmark.measure.validity import Interval

MOST_CONFIDENCE = 0.99
"""The intervals come from 1000 resamples, which say little about more extreme percentiles."""
FEWEST_SENTENCES = 100
"""With fewer sentences the resamples are too similar, and the intervals too narrow (Koehn 2004 starts at 300)."""
NEAR = (2, 3)
"""The search also tries levels with this many heads fewer than the one it found, since BLEU does not fall evenly."""
STRIDES = 16
"""It also tries the level that has a sixteenth of all heads fewer."""


@dataclass(frozen=True)
class Limits:
    """What a level must keep: a BLEU drop, a latency, or both. Raises InvalidRequestError on values out of range."""

    max_bleu_drop: float | None = None
    """BLEU points that a level may lose against the reference level, as measured. So are the drops of requests."""
    max_latency_ms: float | None = None
    """Median milliseconds that a request may take."""
    confidence: float = 0.0
    """0: the measured loss decides. More: a level keeps the drop only if the upper end of the interval of its loss, at
    this confidence, is within it too."""

    def __post_init__(self) -> None:
        if self.max_bleu_drop is None and self.max_latency_ms is None:
            raise InvalidRequestError("a search needs a limit: max_bleu_drop, max_latency_ms or both")
        if self.max_bleu_drop is not None and not (self.max_bleu_drop >= 0 and math.isfinite(self.max_bleu_drop)):
            raise InvalidRequestError(f"max_bleu_drop {self.max_bleu_drop:g}: choose 0 or more BLEU points")
        if self.max_latency_ms is not None and not (self.max_latency_ms > 0 and math.isfinite(self.max_latency_ms)):
            raise InvalidRequestError(f"max_latency_ms {self.max_latency_ms:g}: choose more than 0 ms")
        if not 0 <= self.confidence <= MOST_CONFIDENCE:
            raise InvalidRequestError(
                f"confidence {self.confidence:g}: choose 0 (the measured loss alone counts) to {MOST_CONFIDENCE}"
            )

    def check_test_set(self, sentences: int) -> None:
        """Raises InvalidRequestError if a test set of so many sentences is too small for a confidence interval."""
        if self.max_bleu_drop is not None and self.confidence > 0 and sentences < FEWEST_SENTENCES:
            raise InvalidRequestError(
                f"{sentences} sentences are too few to say that a BLEU drop is kept with "
                f"{self.confidence:.0%} confidence; give {FEWEST_SENTENCES} or more, better 1000, or leave the "
                "confidence out: the measured loss then decides"
            )


@dataclass(frozen=True)
class Candidate:
    """A level that was compiled and measured."""

    level: str
    heads: int
    quality: Quality
    loss_at_most: float
    """Upper end of the interval of the BLEU loss, at the confidence of the limits. At confidence 0: the loss itself."""
    p50_ms: float
    """Median milliseconds of a request."""
    precision: Precision = "fp32"
    shortlist: bool = False
    """Whether the level has vocabulary shortlists."""
    p50_interval: Interval | None = None
    """Between which times p50_ms is, by how far the rounds agree. None: latency is no limit, so it was timed once."""

    @property
    def loss(self) -> float:
        """BLEU points lost against the reference level; negative if this level scored higher."""
        return -self.quality.bleu_delta

    @property
    def is_reference(self) -> bool:
        """Whether this is the level that the other candidates are compared with."""
        return self.level == self.quality.reference_level

    def keeps_drop(self, limits: Limits) -> bool:
        """Whether the BLEU drop is kept. True where there is no such limit."""
        # To two digits, as it is printed, and as the drops of requests are compared.
        return limits.max_bleu_drop is None or round(self.loss_at_most, 2) <= limits.max_bleu_drop

    def keeps_latency(self, limits: Limits) -> bool:
        """Whether the latency is surely kept: the whole interval is within it. True where there is no such limit."""
        slowest = self.p50_interval.high if self.p50_interval else self.p50_ms
        return limits.max_latency_ms is None or round(slowest, 1) <= limits.max_latency_ms  # as it is printed

    def latency_known(self, limits: Limits) -> bool:
        """Whether the rounds agree that the latency is kept, or that it is not. True where there is no such limit."""
        fastest = self.p50_interval.low if self.p50_interval else self.p50_ms
        return self.keeps_latency(limits) or round(fastest, 1) > (limits.max_latency_ms or 0.0)

    def keeps(self, limits: Limits) -> bool:
        """Whether every limit is kept."""
        return self.keeps_drop(limits) and self.keeps_latency(limits)


@dataclass(frozen=True)
class Search:
    """The outcome of one search."""

    limits: Limits
    tried: tuple[Candidate, ...]
    """All candidates, most heads first. The first one has all heads."""
    found: Candidate | None
    """The candidate chosen; None if no candidate keeps the limits."""

    @property
    def passed_over(self) -> tuple[Candidate, ...]:
        """Candidates that have more heads than the one found and yet lose more than allowed.

        If there are any, the drop is close to the smallest difference that the test set can show.
        """
        if self.found is None:
            return ()
        return tuple(c for c in self.tried if c.heads > self.found.heads and not c.keeps_drop(self.limits))

    @property
    def not_known(self) -> tuple[Candidate, ...]:
        """Candidates that might have been chosen, if it were known whether they keep the latency."""
        maybe = [c for c in self.tried if c.keeps_drop(self.limits) and not c.latency_known(self.limits)]
        if self.found is None:
            return tuple(maybe)
        fewer_wanted = self.limits.max_bleu_drop is not None
        return tuple(c for c in maybe if (c.heads < self.found.heads) == fewer_wanted)


def search(heads: int, evaluate: Callable[[int], Candidate], limits: Limits, least: int = 1) -> Search:
    """Searches levels of `least` to `heads` heads. `evaluate` measures the level with a number of heads, once each.

    With a BLEU drop alone it finds the fewest heads that keep the drop, with a latency alone the most heads that keep
    the latency. With both it finds the fewest heads that keep both: a level with more heads is slower. The level with
    all heads is tried first, and `found` may be that level: the caller decides whether it is an answer.
    """
    seen: dict[int, Candidate] = {}

    def tried(number: int) -> Candidate:
        if number not in seen:
            seen[number] = evaluate(number)
        return seen[number]

    if limits.max_bleu_drop is not None:
        fewest_heads(heads, lambda number: tried(number).keeps_drop(limits), least)
        smallest = min((c for c in seen.values() if c.keeps(limits)), key=lambda c: c.heads, default=None)
    else:
        most_heads(heads, lambda number: tried(number).keeps_latency(limits), least)
        smallest = max((c for c in seen.values() if c.keeps(limits)), key=lambda c: c.heads, default=None)
    return Search(limits, tuple(sorted(seen.values(), key=lambda c: -c.heads)), smallest)


def fewest_heads(heads: int, keeps: Callable[[int], bool], least: int = 1) -> int | None:
    """The fewest heads, `least` or more, for which `keeps` is true, by bisection; None if it is false for `heads`.

    Bisection is exact if every closed head costs BLEU. In practice BLEU does not fall evenly, and a level may fail by
    chance. So a few levels below the one found are tried as well. If one of them keeps the drop, bisection continues
    from there, once: a longer search would find some level that keeps the drop by chance.
    """
    known: dict[int, bool] = {}

    def holds(number: int) -> bool:
        if number not in known:
            known[number] = keeps(number)
        return known[number]

    def bisect(upper: int) -> int:
        return _bisect(upper, max((n for n, kept in known.items() if n < upper and not kept), default=least - 1), holds)

    if not holds(heads):
        return None
    fewest = bisect(heads)
    below = [fewest - distance for distance in sorted({*NEAR, max(1, heads // STRIDES)})]
    better = [number for number in below if number >= least and holds(number)]
    return bisect(min(better)) if better else fewest


def most_heads(heads: int, fits: Callable[[int], bool], least: int = 1) -> int | None:
    """The most heads for which `fits` is true, by bisection; None if it is false for `least` heads."""
    if fits(heads):
        return heads
    too_many = _bisect(heads, least - 1, lambda number: not fits(number))
    return too_many - 1 if too_many > least else None


def _bisect(upper: int, lower: int, holds: Callable[[int], bool]) -> int:
    """A number n in (lower, upper] for which `holds` is true and for n - 1 false, or n - 1 is `lower`.

    `holds` must be true for `upper`; it is not called for it.
    """
    while upper - lower > 1:
        middle = (upper + lower) // 2
        if holds(middle):
            upper = middle
        else:
            lower = middle
    return upper

"""Compile to a budget: which number of heads keeps a BLEU drop, or a latency, with as few levels tried as possible.

The search knows levels only by their number of heads and what a measurement says of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hmc.artifact.bundle import Precision, Quality
from hmc.artifact.errors import InvalidRequestError

MOST_CONFIDENCE = 0.99
"""A thousand resamples say little about what lies further out."""
FEWEST_SENTENCES = 100
"""Resamples of fewer are too much alike: their intervals claim more than is known (Koehn 2004 begins at 300)."""
NEAR = (2, 3)
"""Levels this many heads below the found one are tried too: BLEU does not fall evenly."""
STRIDES = 16
"""So is the one a stride below, a sixteenth of all heads."""


@dataclass(frozen=True)
class Limits:
    """What a level has to keep; at least one of the two limits. Raises InvalidRequestError on values out of range."""

    max_bleu_drop: float | None = None
    """BLEU points that may be lost against the reference level."""
    max_latency_ms: float | None = None
    """Median milliseconds of a request."""
    confidence: float = 0.95
    """The drop is kept where the whole confidence interval of the loss keeps it; 0: where the measured loss does."""

    def __post_init__(self) -> None:
        if self.max_bleu_drop is None and self.max_latency_ms is None:
            raise InvalidRequestError("a search needs a limit: --max-bleu-drop, --max-latency-ms or both")
        if self.max_bleu_drop is not None and not (self.max_bleu_drop >= 0 and math.isfinite(self.max_bleu_drop)):
            raise InvalidRequestError(f"--max-bleu-drop {self.max_bleu_drop:g}: choose 0 or more BLEU points")
        if self.max_latency_ms is not None and not (self.max_latency_ms > 0 and math.isfinite(self.max_latency_ms)):
            raise InvalidRequestError(f"--max-latency-ms {self.max_latency_ms:g}: choose more than 0 ms")
        if not 0 <= self.confidence <= MOST_CONFIDENCE:
            raise InvalidRequestError(
                f"--confidence {self.confidence:g}: choose 0 (the measured loss alone counts) to {MOST_CONFIDENCE}"
            )

    def check_test_set(self, sentences: int) -> None:
        """Raises InvalidRequestError where so few sentences cannot say how sure a drop is kept."""
        if self.max_bleu_drop is not None and self.confidence > 0 and sentences < FEWEST_SENTENCES:
            raise InvalidRequestError(
                f"--eval: {sentences} sentences are too few to say that a BLEU drop is kept with "
                f"{self.confidence:.0%} confidence; give {FEWEST_SENTENCES} or more, better 1000, or --confidence 0, "
                "which takes the measured loss for the true one"
            )


@dataclass(frozen=True)
class Candidate:
    """A level that was tried."""

    level: str
    heads: int
    quality: Quality
    loss_at_most: float
    """Upper end of the interval of the BLEU loss, at the confidence of the limits; the loss itself at confidence 0."""
    p50_ms: float
    """Median milliseconds of a request."""
    precision: Precision = "fp32"
    shortlist: bool = False
    """Whether the level has vocabulary shortlists."""

    @property
    def loss(self) -> float:
        """BLEU lost against the reference level; below 0 if it scored higher."""
        return -self.quality.bleu_delta

    def keeps_drop(self, limits: Limits) -> bool:
        """True without such a limit."""
        return limits.max_bleu_drop is None or self.loss_at_most <= limits.max_bleu_drop

    def keeps_latency(self, limits: Limits) -> bool:
        """True without such a limit."""
        return limits.max_latency_ms is None or self.p50_ms <= limits.max_latency_ms

    def keeps(self, limits: Limits) -> bool:
        """Whether every limit is kept."""
        return self.keeps_drop(limits) and self.keeps_latency(limits)


@dataclass(frozen=True)
class Search:
    """What was tried, and what came out."""

    limits: Limits
    tried: tuple[Candidate, ...]
    """In the order of their heads, most first; the first one has all heads."""
    found: Candidate | None

    @property
    def passed_over(self) -> tuple[Candidate, ...]:
        """Candidates with more heads than the found one that lose more than allowed: the sign of a drop that is close
        to what the test set can tell apart."""
        if self.found is None:
            return ()
        return tuple(c for c in self.tried if c.heads > self.found.heads and not c.keeps_drop(self.limits))


def search(heads: int, evaluate: Callable[[int], Candidate], limits: Limits) -> Search:
    """Tries levels of 1 to `heads` heads, the last one first; no level is evaluated twice.

    With a BLEU drop it looks for the fewest heads that keep it, with a latency alone for the most heads within it. With
    both it takes the fewest heads that keep both: fewer heads are faster, so where that level is too slow, so are those
    with more. `found` is None where nothing keeps the limits; whether all heads are an answer is left to the caller.
    """
    seen: dict[int, Candidate] = {}

    def tried(number: int) -> Candidate:
        if number not in seen:
            seen[number] = evaluate(number)
        return seen[number]

    if limits.max_bleu_drop is not None:
        fewest_heads(heads, lambda number: tried(number).keeps_drop(limits))
        found = min((c for c in seen.values() if c.keeps(limits)), key=lambda c: c.heads, default=None)
    else:
        most_heads(heads, lambda number: tried(number).keeps_latency(limits))
        found = max((c for c in seen.values() if c.keeps(limits)), key=lambda c: c.heads, default=None)
    return Search(limits, tuple(sorted(seen.values(), key=lambda c: -c.heads)), found)


def fewest_heads(heads: int, keeps: Callable[[int], bool]) -> int | None:
    """The fewest heads that `keeps`, by bisection, verified below; None where not even `heads` does.

    Bisection finds it where every closed head costs BLEU. Not every one does, and a level may fail by chance: so a few
    below the found one are tried, and where one of them keeps the drop, bisection goes on from there. Once, and no
    further: whoever tries long enough finds a level that keeps the drop by chance.
    """
    known: dict[int, bool] = {}

    def holds(number: int) -> bool:
        if number not in known:
            known[number] = keeps(number)
        return known[number]

    def bisect(upper: int) -> int:
        return _bisect(upper, max((n for n, kept in known.items() if n < upper and not kept), default=0), holds)

    if not holds(heads):
        return None
    found = bisect(heads)
    below = [found - distance for distance in sorted({*NEAR, max(1, heads // STRIDES)})]
    better = [number for number in below if number >= 1 and holds(number)]
    return bisect(min(better)) if better else found


def most_heads(heads: int, fits: Callable[[int], bool]) -> int | None:
    """The most heads that `fits`, by bisection; None where not even one head does."""
    if fits(heads):
        return heads
    too_many = _bisect(heads, 0, lambda number: not fits(number))
    return too_many - 1 or None


def _bisect(upper: int, lower: int, holds: Callable[[int], bool]) -> int:
    """The n in (lower, upper] that holds while n - 1 does not, or is `lower`; `upper` is known to hold."""
    while upper - lower > 1:
        middle = (upper + lower) // 2
        if holds(middle):
            upper = middle
        else:
            lower = middle
    return upper

"""A claim, what was found of it, and how a verdict is reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from experiments.papers.over_seeds import Difference
from experiments.papers.studies import Study

Verdict = Literal["holds", "does not hold", "undecided", "not comparable"]
SIGNIFICANT = 0.01
"""p-value below which outputs differ, as Michel et al. have it."""
NOTICEABLE = 0.5
"""BLEU. What certainly loses less has no loss; a test that finds no difference does not show that there is none."""


@dataclass(frozen=True)
class Finding:
    """What was found here."""

    ours: str
    basis: str
    """What the verdict rests on: seeds, or the outputs of one model, and the test."""
    verdict: Verdict


@dataclass(frozen=True)
class Claim:
    """One row of the page."""

    source: str
    claim: str
    theirs: str
    """The paper's numbers."""
    steps: str = ""
    """Names of the steps that it needs, as `run` takes them."""
    judge: Callable[[Study], Finding] | None = None
    """Raises NotRunError where a step is missing."""
    untestable: str = ""
    """Why it cannot be tested, in place of a judge."""


def above(found: Difference, bound: float = 0.0) -> Verdict:
    """Whether a difference is at least `bound`: decided where its interval lies on one side."""
    return "holds" if found.low >= bound else "does not hold" if found.high < bound else "undecided"


def below(found: Difference, bound: float = 0.0) -> Verdict:
    """Whether a difference is at most `bound`."""
    return above(Difference(-found.value, -found.high, -found.low), -bound)


def both(first: Verdict, second: Verdict) -> Verdict:
    """The verdict of a claim that was judged in two ways which must agree."""
    return first if first == second else "undecided"


def without_loss(row: Mapping[str, float]) -> Verdict:
    """Whether outputs lose less than NOTICEABLE; undecided where they may lose more, and p does not say that they
    lose."""
    if row["low"] > -NOTICEABLE:
        return "holds"
    return "does not hold" if row["p_value"] < SIGNIFICANT and row["value"] < 0 else "undecided"


def positive(found: Mapping[str, Any]) -> Verdict:
    """Whether a value with the ends `low` and `high` is above zero."""
    return above(Difference(found["value"], found["low"], found["high"]))


def if_true(true: bool) -> Verdict:
    """The verdict of something that is counted."""
    return "holds" if true else "does not hold"

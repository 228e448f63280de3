"""The search for a head budget, with invented measurements in place of levels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.benchmark.fakes import quality

from hmc.artifact import InvalidRequestError
from hmc.benchmark import Candidate, Limits
from hmc.benchmark.budget.search import fewest_heads, most_heads, search

HEADS = 144


class Bench:
    """Levels whose loss and latency are functions of the number of heads. Counts the measurements."""

    def __init__(
        self, loss: Callable[[int], float], noise: float = 0.0, p50_ms: Callable[[int], float] = lambda n: 5 + n / 10
    ) -> None:
        self.loss, self.noise, self.p50_ms = loss, noise, p50_ms
        self.asked: list[int] = []

    def __call__(self, heads: int) -> Candidate:
        self.asked.append(heads)
        name = "full" if heads == HEADS else f"h{heads}"
        loss, noise = (0.0, 0.0) if heads == HEADS else (self.loss(heads), self.noise)
        measured = quality(name, 30 - loss, -loss - noise, -loss + noise)
        return Candidate(name, heads, measured, loss + noise, self.p50_ms(heads))


@given(st.integers(1, 200), st.integers(1, 200))
def test_an_even_fall_is_found_exactly(heads: int, first: int) -> None:
    """Both directions; the expected result comes from trying every number."""
    asked: list[int] = []

    def keeps(number: int) -> bool:
        asked.append(number)
        return number >= first

    expected = min((n for n in range(1, heads + 1) if n >= first), default=None)
    assert fewest_heads(heads, keeps) == expected
    assert len(asked) == len(set(asked)) <= 13
    assert all(1 <= number <= heads for number in asked)

    fitting = max((n for n in range(1, heads + 1) if not keeps(n)), default=None)
    assert most_heads(heads, lambda n: not keeps(n)) == fitting


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 50))
def test_no_level_below_the_least_is_tried(heads: int, least: int, first: int) -> None:
    """A level of fewer heads might have no cross-attention."""
    assume(least <= heads)
    asked: list[int] = []

    def keeps(number: int) -> bool:
        asked.append(number)
        return number >= first

    every = range(least, heads + 1)
    assert fewest_heads(heads, keeps, least) == min((n for n in every if n >= first), default=None)
    assert most_heads(heads, lambda n: not keeps(n), least) == max((n for n in every if n < first), default=None)
    assert min(asked) >= least


def test_a_level_that_fails_by_chance_does_not_end_the_search() -> None:
    """60 heads and more keep the drop, except 72 and 71, which would send bisection the wrong way."""
    assert fewest_heads(HEADS, lambda n: n >= 60 and n not in (72, 71)) == 60


@given(st.sets(st.integers(1, HEADS - 1)))
def test_whatever_is_found_holds_after_few_tries(held: set[int]) -> None:
    """For any uneven fall of BLEU."""
    asked: list[int] = []

    def keeps(number: int) -> bool:
        asked.append(number)
        return number == HEADS or number in held

    found = fewest_heads(HEADS, keeps)
    assert found == HEADS or found in held
    assert found is not None
    assert found - 1 not in held
    assert len(asked) == len(set(asked)) <= 1 + 8 + 3 + 8


def test_the_measured_loss_decides() -> None:
    done = search(HEADS, Bench(lambda n: (HEADS - n) / 100), Limits(max_bleu_drop=0.5))
    assert done.found is not None
    assert done.found.heads == 94


def test_with_a_confidence_the_interval_decides() -> None:
    bench = Bench(lambda n: (HEADS - n) / 100, noise=0.2)
    done = search(HEADS, bench, Limits(max_bleu_drop=0.5, confidence=0.95))
    assert done.found is not None
    assert done.found.heads == 114  # loses 0.30 as measured, at most 0.50
    assert done.found.loss_at_most == pytest.approx(0.5)
    assert len(bench.asked) == len(set(bench.asked)) <= 13
    assert [c.heads for c in done.tried] == sorted(bench.asked, reverse=True)
    assert done.passed_over == ()


def test_levels_with_more_heads_that_fail_are_told() -> None:
    done = search(
        HEADS, Bench(lambda n: 1.0 if n in (72, 71) or n < 60 else 0.1), Limits(max_bleu_drop=0.5, confidence=0.95)
    )
    assert done.found is not None
    assert done.found.heads == 60
    assert 72 in [c.heads for c in done.passed_over]


def test_nothing_keeps_the_drop_but_all_heads() -> None:
    done = search(HEADS, Bench(lambda n: 0.02, noise=0.4), Limits(max_bleu_drop=0.25, confidence=0.95))
    assert done.found is not None
    assert done.found.heads == HEADS
    assert HEADS - 1 in [c.heads for c in done.tried]


def test_latency_alone_takes_the_most_heads_within_it() -> None:
    bench = Bench(lambda n: 0.0)
    done = search(HEADS, bench, Limits(max_latency_ms=12.0))
    assert done.found is not None
    assert done.found.heads == 70
    assert len(bench.asked) <= 9
    assert search(HEADS, Bench(lambda n: 0.0), Limits(max_latency_ms=1e3)).tried == (Bench(lambda n: 0.0)(HEADS),)
    assert search(HEADS, Bench(lambda n: 0.0), Limits(max_latency_ms=5.0)).found is None


@pytest.mark.parametrize(("limit_ms", "expected"), [(30.0, 114), (16.4, 114), (16.3, None)])
def test_both_limits(limit_ms: float, expected: int | None) -> None:
    bench = Bench(lambda n: (HEADS - n) / 100, noise=0.2)
    done = search(HEADS, bench, Limits(max_bleu_drop=0.5, max_latency_ms=limit_ms, confidence=0.95))
    assert (done.found.heads if done.found else None) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((None, None), "max_bleu_drop, max_latency_ms or both"),
        ((-0.1, None), "max_bleu_drop -0.1: choose 0 or more"),
        ((float("nan"), None), "max_bleu_drop nan"),
        ((None, 0.0), "max_latency_ms 0: choose more than 0 ms"),
        ((0.5, None, 0.999), "confidence 0.999: choose 0"),
        ((0.5, None, float("nan")), "confidence nan"),
    ],
)
def test_limits_out_of_range(values: tuple[float | None, ...], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        Limits(*values)  # type: ignore[arg-type]

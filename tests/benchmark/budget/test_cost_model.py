"""Costs are found again from latencies that were made of known costs."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from tests.artifact.model.test_latency import SETTING, table, whole
from tests.tiny import tiny_architecture

from hmc.artifact import InvalidRequestError
from hmc.artifact.model.latency import Observation
from hmc.benchmark.budget.latency_table import fit_table, non_negative_least_squares, random_sizes


def observations(step: int, noise: float, number: int = 60, held_out: int = 10) -> list[Observation]:
    rng, made = np.random.default_rng(3), table(step)
    sizes = [whole(), *(random_sizes(whole(), rng) for _ in range(number - 1))]
    return [
        Observation(
            sizes=s, ms=made.ms(s) * float(np.exp(noise * rng.standard_normal())), held_out=i >= number - held_out
        )
        for i, s in enumerate(sizes)
    ]


@pytest.mark.parametrize("step", [1, 16])
def test_known_costs_are_found(step: int) -> None:
    found = fit_table(observations(step, 0.0), tiny_architecture(), SETTING)
    wanted = table(step)
    assert found.worst_error < 1e-6
    assert found.fixed_ms == pytest.approx(wanted.fixed_ms, rel=1e-4)
    assert found.neurons["decoder"].step == step
    for kind, cost in wanted.heads.items():
        assert found.heads[kind].each_ms == pytest.approx(cost.each_ms, rel=1e-3, abs=1e-6)


def test_errors_are_those_of_models_that_were_left_out() -> None:
    noisy = observations(1, 0.03)
    found = fit_table(noisy, tiny_architecture(), SETTING)
    assert 0.005 < found.mean_error < found.worst_error < 0.12
    bent = [o.model_copy(update={"ms": o.ms * 2}) if o.held_out else o for o in noisy]
    assert fit_table(bent, tiny_architecture(), SETTING).worst_error > 0.4


def test_too_few_models_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="measure more than 12 models"):
        fit_table(observations(1, 0, 12, 0), tiny_architecture(), SETTING)


def test_least_squares_are_those_of_the_best_support() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows, wanted = rng.standard_normal((9, 4)), rng.standard_normal(9)
        found = non_negative_least_squares(rows, wanted)
        best = np.inf
        for size in range(5):
            for chosen in combinations(range(4), size):
                x = np.zeros(4)
                if chosen:
                    x[list(chosen)] = np.linalg.lstsq(rows[:, chosen], wanted, rcond=None)[0]
                if x.min() >= 0:
                    best = min(best, float(np.sum((rows @ x - wanted) ** 2)))
        assert found.min() >= 0
        assert float(np.sum((rows @ found - wanted) ** 2)) == pytest.approx(best)

"""The tables of `experiments.sizes`: ratios are to the faster setting of the other engine, and to its default apart."""

from __future__ import annotations

import pytest
from experiments.sizes import best, ratios

TIMES = {
    "hmc full-int8": [2.0, 2.0, 2.0],
    "hmc full-int8 2 workers": [1.0, 1.0, 1.0],
    "hmc h36-int8": [0.5, 0.5, 0.5],
    "ct2 int8 2 threads": [9.0, 9.0, 9.0],
    "ct2 int8 2 workers": [1.5, 1.4, 1.6],
}


def test_ratios_are_of_the_same_round() -> None:
    found = ratios(TIMES)
    assert found["hmc full-int8 2 workers against ct2 int8 2 workers"] == pytest.approx((1.5, 1.4, 1.6))
    assert found["hmc full-int8 against ct2 int8 2 threads"][0] == pytest.approx(4.5)


def test_the_summary_has_the_faster_setting_of_both() -> None:
    assert best(ratios(TIMES), TIMES) == pytest.approx({"full-int8": 1.5, "h36-int8": 3.0})

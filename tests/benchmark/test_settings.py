"""Settings that make no sense are refused, with what to choose instead."""

from pathlib import Path
from typing import Any

import pytest

from hmc.artifact import InvalidRequestError
from hmc.benchmark import BenchmarkSettings
from hmc.benchmark.measure.latency import RequestSize


def settings(**changed: Any) -> BenchmarkSettings:
    return BenchmarkSettings(bundle=Path("bundle"), src=Path("a.en"), **changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batches": (1, 0)}, "batch 0: choose 1 or more"),
        ({"batches": ()}, "batch: give at least one size"),
        ({"batches": (8, 8)}, "batch 8,8: give each size once"),
        ({"beams": (17,)}, "beam 17: choose 1 to 16"),
        ({"beams": (-1,)}, "beam -1: choose 1 to 16"),
        ({"rounds": 0}, "rounds 0: choose 1 or more"),
        ({"latency_limit": 0}, "latency_limit 0: choose 1 or more"),
        ({"limit": -3}, "limit -3: choose 1 sentence or more"),
        ({"threads": -1}, "threads -1: choose 0"),
        ({"levels": ()}, "levels: name at least one, or say all"),
        ({"levels": ("h36", "full", "h36")}, "levels h36,full,h36: give each level once"),
    ],
)
def test_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        settings(**changed)


def test_points_are_all_pairs() -> None:
    points = settings(batches=(1, 32), beams=(1, 4)).points
    assert points == [RequestSize(1, 1), RequestSize(1, 4), RequestSize(32, 1), RequestSize(32, 4)]


@pytest.mark.parametrize(
    ("sentences", "limit", "batches"),
    [(1000, 128, (1, 32)), (1000, 8, (1, 8)), (5, 128, (1, 5)), (1, 128, (1,)), (40, 128, (1, 32))],
)
def test_the_default_batches_are_no_larger_than_what_is_timed(
    sentences: int, limit: int, batches: tuple[int, ...]
) -> None:
    assert settings(latency_limit=limit).fitted(sentences).batches == batches


def test_a_batch_that_was_asked_for_must_be_filled() -> None:
    assert settings(batches=(5, 2)).fitted(5).batches == (5, 2)
    with pytest.raises(InvalidRequestError, match=r"batch 100: only 5 sentences are timed .*; choose 5 or less"):
        settings(batches=(1, 100)).fitted(5)
    with pytest.raises(InvalidRequestError, match="every line that was read is blank, so there is nothing to time"):
        settings().fitted(0)
    with pytest.raises(
        InvalidRequestError, match=r"only 8 sentences .*test set has 1000 that are not blank, the latency limit is 8"
    ):
        settings(batches=(32,), latency_limit=8).fitted(1000)


@pytest.mark.parametrize(
    ("batches", "beams", "headline"),
    [((32, 1), (1, 4), RequestSize(1, 4)), ((8,), (1, 2), RequestSize(8, 2)), ((2,), (6, 4), RequestSize(2, 4))],
)
def test_headline(batches: tuple[int, ...], beams: tuple[int, ...], headline: RequestSize) -> None:
    assert settings(batches=batches, beams=beams).headline == headline

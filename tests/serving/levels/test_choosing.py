"""The level that each of the five selectors chooses. `tests/artifact/bundle/test_order.py` has the order of levels."""

import dataclasses
import re

import pytest

from hmc.artifact import HeadLayout, InvalidRequestError, Level
from hmc.artifact.bundle.manifest import Latency, Quality
from hmc.artifact.errors import LevelNotFoundError
from hmc.serving import Selector
from hmc.serving.levels.choosing import LevelCandidate, choose, runs_on
from hmc.serving.levels.latency import RequestTimes


def level(
    name: str,
    heads: int,
    *,
    precision: str = "fp32",
    drop: float | None = None,
    p95: float | None = None,
    size: int = 1,
) -> Level:
    """A level of one layer of each kind. heads: in each of them. drop: BLEU points lost. p95: recorded
    milliseconds; the median is half as much."""
    quality = latency = None
    if drop is not None:
        quality = Quality(
            test_set="t", sentences=1, beam=1, bleu=30, chrf=50, bleu_delta=-drop, ci_low=-drop - 0.1,
            ci_high=0.1 - drop, p_value=1, reference_level="full", bleu_signature="b", chrf_signature="c",
        )  # fmt: skip
    if p95 is not None:
        latency = Latency(p50_ms=p95 / 2, p95_ms=p95, p99_ms=p95, batch=1, beam=1, requests=9, machine="m")
    return Level(
        name=name, precision=precision, head_layout=HeadLayout.full(1, 1, heads).to_json(),  # type: ignore[arg-type]
        parameters=1000 * heads, bytes=size, source_checkpoint="", files={}, quality=quality, latency=latency,
    )  # fmt: skip


def pick(selector: Selector, *candidates: Level | LevelCandidate) -> str:
    """Levels without a candidate of their own take what is recorded."""
    recorded = RequestTimes([c for c in candidates if isinstance(c, Level)]).p95_ms(0)
    made = [c if isinstance(c, LevelCandidate) else LevelCandidate(c, p95_ms=recorded.get(c.name)) for c in candidates]
    return choose(selector, made).name


FULL, HALF, HALF_INT8, QUARTER = (
    level("full", 4, drop=0.0, p95=40, size=8),
    level("h6", 2, drop=0.2, p95=20, size=4),
    level("h6-int8", 2, precision="int8", drop=0.3, p95=12, size=2),
    level("h3", 1, drop=0.9, p95=9, size=3),
)
ALL = (QUARTER, HALF_INT8, FULL, HALF)


@pytest.mark.parametrize(("heads", "name"), [(100, "full"), (12, "full"), (11, "h6"), (6, "h6"), (5, "h3")])
def test_max_heads_takes_the_best_that_fits(heads: int, name: str) -> None:
    assert pick(Selector(max_heads=heads), *ALL) == name


def test_max_heads_below_the_smallest_names_it() -> None:
    with pytest.raises(LevelNotFoundError, match="at most 2 heads; the smallest is 'h3' with 3"):
        pick(Selector(max_heads=2), *ALL)


def test_a_level_that_another_beats_is_not_chosen() -> None:
    """Levels of the demo. With most heads, `fast` is worse than h36; at int8 a level may be better than at fp32."""
    h58, h58_int8 = level("h58", 2, drop=1.6, p95=60), level("h58-int8", 2, precision="int8", drop=1.5, p95=30)
    h36, fast = level("h36", 1, drop=2.6, p95=45), level("fast", 2, drop=3.7, p95=46)
    assert pick(Selector(max_heads=6), h58, h58_int8, h36) == "h58-int8"
    assert pick(Selector(max_heads=6), h36, fast) == "h36"
    assert pick(Selector(latency_budget_ms=60), h58, h58_int8) == "h58-int8"
    assert pick(Selector(auto=True), h58, h58_int8) == "h58-int8"
    assert pick(Selector(max_bleu_drop=5), h58, h58_int8, h36) == "h58-int8", "it is the fastest too"


@pytest.mark.parametrize(("drop", "name"), [(0.0, "full"), (0.2, "h6"), (0.3, "h6-int8"), (1.0, "h3")])
def test_max_bleu_drop_takes_the_fastest_that_keeps_it(drop: float, name: str) -> None:
    assert pick(Selector(max_bleu_drop=drop), *ALL) == name


def test_max_bleu_drop_asks_for_speed_and_not_for_few_heads() -> None:
    fast = level("fast-int8", 3, precision="int8", drop=3.6, p95=9)
    assert pick(Selector(max_bleu_drop=5), FULL, level("h3", 1, drop=2.9, p95=14), fast) == "fast-int8"


def test_a_level_that_gains_bleu_loses_less_than_nothing() -> None:
    assert pick(Selector(max_bleu_drop=0), FULL, level("h3", 1, drop=-0.1)) == "h3"


def test_max_bleu_drop_ignores_levels_without_quality() -> None:
    assert pick(Selector(max_bleu_drop=5), FULL, level("h3", 1)) == "full"
    with pytest.raises(LevelNotFoundError, match="--eval SRC REF"):
        pick(Selector(max_bleu_drop=5), level("h3", 1))


def test_max_bleu_drop_that_none_keeps_names_the_nearest() -> None:
    with pytest.raises(LevelNotFoundError, match=re.escape("the nearest is 'h6' with 0.20")):
        pick(Selector(max_bleu_drop=0.1), HALF, QUARTER)


@pytest.mark.parametrize(("budget", "name"), [(50, "full"), (39, "h6"), (12, "h6-int8"), (9, "h3")])
def test_latency_budget_takes_the_best_that_keeps_it(budget: int, name: str) -> None:
    assert pick(Selector(latency_budget_ms=budget), *ALL) == name


def test_a_latency_recorded_for_several_sentences_does_not_count() -> None:
    assert FULL.latency is not None
    of_eight = FULL.model_copy(update={"latency": FULL.latency.model_copy(update={"batch": 8})})
    assert pick(Selector(latency_budget_ms=50), of_eight, HALF) == "h6"


def test_latency_budget_that_none_keeps_names_the_fastest() -> None:
    with pytest.raises(LevelNotFoundError, match="the fastest is 'h3' with about 9 ms"):
        pick(Selector(latency_budget_ms=1), *ALL)
    with pytest.raises(LevelNotFoundError, match="no level has a measured latency"):
        pick(Selector(latency_budget_ms=1), level("a", 1))


def test_what_is_compared_is_what_is_printed() -> None:
    near, just = level("h6", 2, drop=0.304, p95=6.3), level("h6", 2, drop=0.304, p95=6.04)
    with pytest.raises(LevelNotFoundError, match=r"within 6 ms now; the fastest is 'h6' with about 6\.3 ms"):
        pick(Selector(latency_budget_ms=6), near)
    assert pick(Selector(latency_budget_ms=6), just) == "h6"  # printed as 6.0
    assert pick(Selector(max_bleu_drop=0.3), near) == "h6"  # printed as 0.30
    said = "no level loses at most 0.29 BLEU; the nearest is 'h6' with 0.30"
    with pytest.raises(LevelNotFoundError, match=re.escape(said)):
        pick(Selector(max_bleu_drop=0.29), near)


def test_auto_is_the_best_level_where_there_is_no_load() -> None:
    assert pick(Selector(auto=True), HALF, FULL) == "full"


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"max_heads": -1}, "choose 0 or more"),
        ({"max_bleu_drop": -0.1}, "BLEU points"),
        ({"max_bleu_drop": float("nan")}, "BLEU points"),
        ({"latency_budget_ms": 0}, "choose 1 or more"),
        ({"name": "a", "max_heads": 0}, "name and max_heads exclude each other"),
        ({"max_heads": 0, "auto": True}, "max_heads and auto exclude each other"),
    ],
)
def test_selectors_out_of_range(values: dict[str, object], match: str) -> None:
    with pytest.raises(InvalidRequestError, match=match):
        dataclasses.replace(Selector(), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "precision", "runs"),
    [
        ("cpu", "int8", True),
        ("cpu", "fp16", False),
        ("cuda:1", "fp16", True),
        ("cuda", "fp32", False),
        ("cuda,cuda:1", "fp32", False),
        ("cuda:0, cuda:1", "bf16", True),
        ("auto", "fp16", True),
    ],
)
def test_precision_belongs_to_a_device(device: str, precision: str, runs: bool) -> None:
    assert runs_on(device, level("x", 1, precision=precision)) is runs


def test_a_model_without_any_level_for_the_device_is_no_bug() -> None:
    for selector in (Selector(max_heads=3), Selector(max_bleu_drop=1.0), Selector(auto=True)):
        with pytest.raises(LevelNotFoundError, match="no level of this model can run on the device"):
            pick(selector)

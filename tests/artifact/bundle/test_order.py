"""The order of levels: by measured time and quality, and by the cost model where these were not measured."""

from __future__ import annotations

from typing import Any

import pytest

from hmc.artifact import HeadLayout, Level
from hmc.artifact.bundle.manifest import KindQuality, Latency, Quality
from hmc.artifact.bundle.order import RULE, cost_ms, ladder, order, recommended, rule, unfinished

FULL = HeadLayout.full(6, 6, 8).to_json()
SHALLOW = {kind: rows if kind == "encoder_self" else [*rows[:2], [], [], [], []] for kind, rows in FULL.items()}
"""Four of six decoder layers are removed."""


def level(
    name: str,
    *,
    ms: float | None = None,
    loss: float | None = None,
    millions: float = 13,
    layout: dict[str, list[list[int]]] = FULL,
    test_set: str = "test",
    machine: str = "here",
    spread: float = 0.3,
    kinds: dict[str, float] | None = None,
    **more: Any,
) -> Level:
    """A level; `-PRECISION` at the end of its name says its precision. ms: recorded median. loss: BLEU points.
    millions: of parameters. spread: half of the interval of the loss. kinds: kind of text → BLEU points."""
    quality = latency = None
    if loss is not None:
        quality = Quality(
            test_set=test_set, sentences=400, beam=4, bleu=60 - loss, chrf=50, bleu_delta=-loss, ci_low=-loss - spread,
            ci_high=spread - loss, p_value=1, reference_level="full", bleu_signature="b", chrf_signature="c",
            kinds={
                kind: KindQuality(sentences=800, bleu=60 - lost, bleu_delta=-lost, ci_low=-lost - 1, ci_high=1 - lost)
                for kind, lost in (kinds or {}).items()
            },
        )  # fmt: skip
    if ms is not None:
        latency = Latency(p50_ms=ms, p95_ms=2 * ms, p99_ms=3 * ms, batch=1, beam=4, requests=96, machine=machine)
    precision = name.rpartition("-")[2] if "-" in name else "fp32"
    return Level(
        name=name, precision=precision, head_layout=layout, parameters=int(millions * 1e6), bytes=1,  # type: ignore[arg-type]
        source_checkpoint="", files={}, quality=quality, latency=latency, **more,
    )  # fmt: skip


DEMO = [
    level("full", ms=36.0, loss=0.0),
    level("full-int8", ms=17.0, loss=0.1),
    level("h75", ms=33.0, loss=2.1, millions=11),
    level("h75-int8", ms=16.0, loss=2.0, millions=11),
    level("h58", ms=32.0, loss=1.6, millions=10.5),
    level("h58-int8", ms=15.0, loss=1.5, millions=10.5),
    level("h36", ms=31.0, loss=2.6, millions=9.5),
    level("h36-int8", ms=13.9, loss=2.9, millions=9.5),
    level("fast", ms=17.5, loss=3.6, millions=7, layout=SHALLOW),
    level("fast-int8", ms=8.9, loss=3.6, millions=7, layout=SHALLOW),
]
"""As the demo measures them, about."""


def names(levels: list[Level]) -> list[str]:
    return [step.name for step in ladder(levels)]


def test_measured_time_and_quality_decide() -> None:
    assert names(DEMO) == ["full", "full-int8", "h58-int8", "h36-int8", "fast-int8"]
    beaten = {x.name: x.beaten_by for x in order(DEMO) if x.beaten_by}
    assert beaten.keys() == {"h75", "h75-int8", "h58", "h36", "fast"}
    assert beaten["h75-int8"] == "h58-int8"
    assert all(x.timed for x in order(DEMO))


def test_those_that_are_beaten_come_last_and_nothing_is_lost() -> None:
    found = order(DEMO)
    assert sorted(x.name for x in found) == sorted(x.name for x in DEMO)
    assert [bool(x.beaten_by) for x in found] == [False] * 5 + [True] * 5


def test_the_order_does_not_depend_on_that_of_the_levels() -> None:
    assert names(DEMO[::-1]) == names(DEMO)


def test_where_nothing_was_measured_the_cost_model_decides() -> None:
    bare = [x.model_copy(update={"quality": None, "latency": None}) for x in DEMO]
    assert names(bare) == ["full", "full-int8", "h75-int8", "h58-int8", "h36-int8", "fast-int8"]
    assert not any(x.timed for x in order(bare))


def test_a_level_that_was_not_timed_has_a_place_among_those_that_were() -> None:
    missing = [x.model_copy(update={"latency": None}) if x.name == "h58-int8" else x for x in DEMO]
    found = {x.name: x for x in order(missing)}
    assert not found["h58-int8"].timed
    assert found["h36-int8"].ms < found["h58-int8"].ms < found["h58"].ms
    assert "h58-int8" in names(missing)


def test_times_of_another_machine_and_scores_of_another_test_set_are_not_compared() -> None:
    other = level("full-int8", ms=100.0, loss=9.0, machine="there", test_set="another")
    found = {x.name: x for x in order([DEMO[0], other, *DEMO[2:]])}
    assert (found["full-int8"].timed, found["full-int8"].loss) == (False, None)
    assert found["full-int8"].ms < 36.0


def test_a_time_that_was_not_steady_does_not_count() -> None:
    """A demo beside a busy machine recorded 228 ms where 15 are right."""
    busy = DEMO[5].model_copy(update={"latency": DEMO[5].latency.model_copy(update={"p50_ms": 228.0, "steady": False})})  # type: ignore[union-attr]
    found = [busy if each.name == "h58-int8" else each for each in DEMO]
    assert names(found) == names(DEMO)
    assert {x.name for x in order(found) if not x.timed} == {"h58-int8"}
    nothing = [
        x.model_copy(update={"latency": x.latency.model_copy(update={"steady": False})}) for x in DEMO if x.latency
    ]
    assert [x.name for x in order(nothing) if x.timed] == []
    assert 10 < next(x.ms for x in order(nothing) if x.name == "h36-int8") < 20, "on the scale of what was recorded"


def test_what_is_compared_is_what_is_printed() -> None:
    """A difference in the third digit of BLEU is none."""
    assert names([level("full", ms=36.0, loss=0.0), level("full-int8", ms=17.0, loss=0.004)]) == ["full-int8"]


def test_levels_for_another_device_beat_nothing() -> None:
    on_cuda = level("full-fp16", ms=1.0, loss=0.0)
    assert {x.name for x in ladder([*DEMO, on_cuda])} == {*names(DEMO), "full-fp16"}
    assert recommended([*DEMO, on_cuda]).name == "full-int8"
    assert recommended([on_cuda, *DEMO]).name == "full-fp16"


def test_twins_stay_both() -> None:
    assert names([level("a", ms=5.0, loss=0.0), level("b", ms=5.0, loss=0.0)]) == ["a", "b"]


@pytest.mark.parametrize(
    ("loss", "spread", "kinds", "keeps"),
    [
        (0.5, 0.4, None, True),
        (0.51, 0.1, None, False),
        (0.4, 0.51, None, False),
        (0.4, 0.4, {"ui": 1.2, "help": -0.4}, True),
        (0.4, 0.4, {"ui": 1.21, "help": -0.4}, False),
        (-2.0, 1.0, {"ui": -2.0, "help": -2.0}, True),
    ],
)
def test_the_recommended_level_is_the_fastest_within_bounds(
    loss: float, spread: float, kinds: dict[str, float] | None, keeps: bool
) -> None:
    """Its loss on average, the upper end of the interval of that, and on the kind of text that loses most."""
    full = level("full", ms=36.0, loss=0.0, spread=0.0)
    fast = level("fast", ms=18.0, loss=loss, spread=spread, kinds=kinds, millions=7)
    faster = level("faster", ms=9.0, loss=3.0, millions=5)
    assert recommended([full, fast, faster]).name == ("fast" if keeps else "full")


def test_the_rule_in_words_names_the_bound_that_applies() -> None:
    assert rule(DEMO) == RULE
    assert (
        rule([level("full"), level("h58", loss=0.4, kinds={"ui": 0.5})]) == f"{RULE}, on no kind of text more than 1.2"
    )


def test_scores_by_kind_are_written_only_where_there_are_any() -> None:
    """A bundle of an earlier version stays as it is, to the byte."""
    plain = level("full", loss=0.0).model_dump(mode="json")["quality"]
    assert not {"kinds", "command"} & plain.keys()
    by_kind = level("full", loss=0.0, kinds={"ui": 0.5})
    assert Level.model_validate(by_kind.model_dump(mode="json")) == by_kind


def test_without_scores_the_best_level_is_recommended() -> None:
    assert recommended([x.model_copy(update={"quality": None}) for x in DEMO]).name == "full"
    assert (
        recommended([x.model_copy(update={"quality": None}) for x in DEMO if x.precision == "int8"]).name == "full-int8"
    )
    assert recommended([level("h36", ms=1.0, loss=5.0), level("h58", ms=2.0, loss=4.0)]).name == "h58", "none is within"


def test_the_cost_model_knows_what_makes_a_level_cheaper() -> None:
    by = {x.name: cost_ms(x) for x in DEMO}
    assert by["full-int8"] < by["full"]
    assert by["h36"] < by["h58"] < by["h75"] < by["full"]
    assert by["fast-int8"] < by["h36-int8"]
    assert cost_ms(level("full-int4")) <= by["full-int8"]
    assert cost_ms(level("full-int8", shortlist="weights/a.safetensors")) < by["full-int8"]
    deep = level("full", millions=9.5)
    shallow = level("full", millions=9.5, layout=SHALLOW)
    assert cost_ms(shallow) < cost_ms(deep), "steps cost by the layer too"


def test_a_level_that_gains_by_having_less_had_more_training() -> None:
    """Seen on a base of 1 300 updates: 72 and 36 heads were 3.9 and 6.3 BLEU better, and nothing was said."""
    full = level("full", ms=36.0, loss=0.0)
    gained = [level("h72", loss=-3.9, millions=11), level("h36-int8", loss=-6.3, millions=9.5)]
    said = unfinished([full, *gained])
    assert said.startswith("h72 (+3.9 BLEU), h36-int8 (+6.3 BLEU) are better than full beyond chance")
    assert "all heads would gain too by as many updates (`hmc prune --control` trains that control)" in said


def test_gains_within_chance_and_of_another_precision_say_nothing() -> None:
    full = level("full", loss=0.0)
    assert unfinished([full, level("h72", loss=-0.9, spread=1.0, millions=11)]) == "", "its interval contains 0"
    assert unfinished([full, level("full-int8", loss=-2.0)]) == "", "it has lost nothing"
    assert unfinished([level("h72", loss=-3.9, millions=11)]) == "", "what it is compared with is not there"
    assert unfinished(DEMO) == ""

"""The report as text, tables and JSON."""

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, RenderableType
from tests.benchmark import fakes

from hmc.artifact import InvalidRequestError
from hmc.artifact.bundle.manifest import Latency, Quality
from hmc.benchmark import Report, tables
from hmc.benchmark.measure.validity import Steadiness
from hmc.benchmark.report.results import contract, uncertain
from hmc.benchmark.report.tables import delta, p_value
from hmc.engine.runtime.threads import described


def printed(renderable: RenderableType) -> str:
    console = Console(width=80, force_terminal=False)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_the_contract_says_what_is_timed_and_what_is_not() -> None:
    text = fakes.report().contract
    for part in (
        "Timed: one call that takes texts and returns texts, tokenisation and beam search included",
        "at batch 1 and beam 4.",
        "Not timed: loading, warm-up, gRPC, and the first request of every level at each setting.",
        "Rounds: 1. All levels are loaded in one process.",
        "Ratio: a level's time divided by full's, median over the rounds; below 1 is faster",
        "h72-int8 on cpu; 2 threads for each level",
        "ΔBLEU is against full, with a 95 % interval by paired bootstrap (Koehn 2004, 1000 resamples)",
        "the two-sided p-value of sacreBLEU's paired approximate randomisation (--paired-ar, 10000 trials)",
        "Memory: peak resident memory of a new process",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"threads": 0}, f"; {described(0)} for each level."),
        ({"threads": 1}, "1 thread for each level"),
        ({"left_out": ("h72-fp16",)}, "Left out, because they do not run on this device: h72-fp16."),
        ({}, "In a round each translates the same 7 sentences, one request at a time"),
        ({"timed_at_batch": (1,)}, "each translates the same 1 sentence, one request at a time"),
        (
            {"batches": (1, 3), "timed_at_batch": (8, 6)},
            "each translates the same sentences (8 at batch 1, 6 at batch 3), one request at a time",
        ),
        ({"quality_reference": None}, "Quality: not measured, no references were given."),
    ],
)
def test_the_contract_follows_the_conditions(changed: dict[str, object], part: str) -> None:
    conditions = dataclasses.replace(fakes.report().conditions, **changed)  # type: ignore[arg-type]
    assert part in contract(conditions, {"full": "cpu"})


def test_json_has_every_number_and_reads_back() -> None:
    report = fakes.report()
    data = json.loads(report.to_json())
    assert data["schema_version"] == 2
    assert data["conditions"]["headline"] == {"batch": 1, "beam": 4}
    level = data["levels"][1]
    assert (level["name"], level["heads"], level["bytes"]) == ("h72", 72, 24 * 2**20)
    assert Quality.model_validate(level["quality"][0]) == report.levels[1].quality[0]
    assert level["latency"][0]["p50_ms"] == 15.0
    assert level["memory"]["peak_bytes"] == 200 * 2**20
    assert level["latency"][0]["samples_ms"] == [[15.0] * 5 + [30.0, 45.0]]


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    for report in (fakes.report(), fakes.whole_report()):
        file.write_text(report.to_json(), encoding="utf-8")
        assert Report.read(file) == report


def test_what_is_no_report_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    with pytest.raises(InvalidRequestError, match=r"report\.json: cannot be read"):
        Report.read(file)
    for text, message in (
        ("{}", "is no report of `hmc bench -o FILE`"),
        ('{"schema_version": 1}', "has schema 1, and this version reads 2: measure again"),
        ('{"schema_version": 2}', "contract: Field required; measure again"),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(InvalidRequestError, match=message):
            Report.read(file)


def test_what_the_numbers_do_not_allow_to_say() -> None:
    report = fakes.report()
    assert uncertain(report) == [
        "There are no intervals of times, and steadiness and outliers were not checked: that needs --rounds 3 or more."
    ]
    at = replace(report.levels[0].latency[0], steadiness=Steadiness(0.1, 0.12, 2, 3.5))
    levels = (replace(report.levels[0], latency=(at,)), *report.levels[1:])
    busy = replace(report.machine, load_average=1.5)
    found = uncertain(replace(report, levels=levels, machine=busy, conditions=replace(report.conditions, rounds=3)))
    assert found[0].startswith("Not steady at batch 1, beam 4: full (+10%, 12%). In brackets: ")
    assert found[1].startswith("Outliers at batch 1, beam 4: 2 of 7 at full took more than twice as long")
    assert found[2].startswith("The machine was busy with something else: load average 1.5")


def test_a_report_says_that_a_level_that_gains_had_more_training() -> None:
    report = fakes.report()
    gained = [
        replace(one, parameters=one.parameters - 1, quality=(fakes.quality(one.name, 33.0, 1.0, 5.0),))
        for one in report.levels[1:]
    ]
    found = uncertain(replace(report, levels=(report.levels[0], *gained)))
    assert "all heads would gain too by as many updates" in found[-1]


def test_tables_show_levels_scores_times_and_machine() -> None:
    text = printed(tables(fakes.report()))
    size, scores, times = [" ".join(line.split()) for line in text.splitlines() if "h72-int8" in line]
    assert size == "h72-int8 int8 72 1,000 7.0 200.0 – –"
    assert scores == "4 h72-int8 29.00 -1.00 [-2.00, -0.10] <0.001 50.00 –"
    assert times == "1 4 h72-int8 8.0 16.0 – 7 125.0 1125 0.40"
    for part in (
        "10 sentences of test, Δ against full",
        "Latency of a request",
        "A CPU (4 cores)",
        "load average 0.1",
        "hmc 0.1.0",
    ):
        assert part in text


def test_tables_without_quality() -> None:
    text = printed(tables(fakes.report(with_quality=False)))
    assert "BLEU" not in text
    assert "h72-int8" in text


def test_delta_of_the_reference_is_a_dash() -> None:
    assert delta(fakes.quality("full", 30, 0, 0), "full") == "–"
    quality = fakes.quality("h72", 29.5, -1, 0.2).model_copy(update={"p_value": 0.25})
    assert delta(quality, "h72") == "-0.50 [-1.00, +0.20]"
    assert p_value(quality, "h72") == "0.250"
    assert p_value(quality, "full") == "–"


def test_the_fastest_round_of_each_request_is_recorded_and_whether_rounds_agreed() -> None:
    report = fakes.report()

    def recorded(*rounds: tuple[float, ...]) -> Latency:
        level = report.levels[0]
        at = replace(level.latency[0], samples_ms=rounds)
        return report.recorded_latency(replace(level, latency=(at,)))

    busy = recorded((200.0, 30.0, 40.0), (22.0, 31.0, 300.0), (20.0, 400.0, 42.0))  # each request was hit once
    assert (busy.p50_ms, busy.p95_ms, busy.steady) == (30.0, 40.0, True)
    assert recorded((20.0, 30.0), (40.0, 60.0), (80.0, 90.0)).steady is False
    assert recorded((20.0, 30.0), (40.0, 60.0)).steady is None, "two rounds are too few to tell"


def test_recorded_latency_is_the_headline() -> None:
    report = fakes.report()
    recorded = report.recorded_latency(report.levels[2])
    assert (recorded.p50_ms, recorded.p95_ms, recorded.p99_ms) == (8, 24, 24)
    assert (recorded.batch, recorded.beam, recorded.requests, recorded.machine) == (1, 4, 7, "A CPU (4 cores)")

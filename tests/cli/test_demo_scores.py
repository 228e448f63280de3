"""Whether what the demo measured is what was scored: by weights, by translations, by the loss within its interval."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import pytest
from experiments.kinds import KINDS
from tests.benchmark import fakes
from tests.levels_picture import NAMES, speeds, times
from tests.processes import REPOSITORY

from hmc.artifact.bundle.manifest import Quality
from hmc.artifact.bundle.order import MAX_KIND_LOSS, RULE, recommended
from hmc.artifact.checkpoint.checkpoint import checkpoint_digest
from hmc.benchmark import LevelReport, Report
from hmc.benchmark.measure.quality import over_kinds
from hmc.benchmark.report.results import PeerReport
from hmc.benchmark.report.tables import advice
from hmc.cli import demo_steps
from hmc.cli.demo_scores import Sample, ShippedScores, agreement, read_scores, sample_of

System = TypeVar("System", LevelReport, PeerReport)
WEIGHTS = dict.fromkeys(("full", "h72", "h72-int8", "Peer"), "weights")


def recorded(level: str, loss: float) -> Quality:
    """Scores on two kinds of text."""
    kind = fakes.quality(level, 30 - loss, -loss - 0.3, 0.3 - loss)
    return over_kinds({"ui": kind, "help": kind}, "two kinds of text", "python -m scores")


def changed(system: System, bleu: float) -> System:
    """A level or an engine with another BLEU, and so with other translations."""
    quality = system.quality[0].model_copy(update={"bleu": bleu, "bleu_delta": bleu - 30})
    return replace(system, quality=(quality,), translations=("another", *system.translations[1:]))


def measured(**bleu: float) -> Report:
    """A report in which some have another BLEU on the demo's sentences."""
    report = fakes.whole_report()
    levels = tuple(changed(x, bleu[x.name]) if x.name in bleu else x for x in report.levels)
    peers = tuple(changed(x, bleu[x.name]) if x.name in bleu else x for x in report.peers)
    return replace(report, levels=levels, peers=peers)


@pytest.fixture
def scores() -> dict[str, ShippedScores]:
    """Those of the levels of a fake report, and what they made of its sentences. h72 loses little on other text."""
    losses = {"full": 0.0, "h72": 0.2, "h72-int8": 2.0, "Peer": 0.4}
    found = {}
    for system in measured().systems:
        quality = system.quality_at(4)
        assert quality
        sample = sample_of(system.translations, quality)
        found[system.name] = ShippedScores(
            checkpoint="weights", quality=recorded(system.name, losses[system.name]), sample=sample
        )
    return found


def test_equal_translations_are_what_was_scored(scores: dict[str, ShippedScores]) -> None:
    found = agreement(measured(), WEIGHTS, scores)
    assert found.holds
    agree = "These scores are recorded. The demo's own 10 sentences agree: all levels translate them as"
    assert found.said == f"{agree} when they were scored."
    assert [system.recorded for system in found.report.systems] == [one.quality for one in scores.values()]


def test_recorded_scores_decide_and_the_advice_says_so(scores: dict[str, ShippedScores]) -> None:
    """By these ten sentences no level but the whole one keeps the bounds; by the recorded scores h72 does."""
    assert recommended(measured().described_levels()).name == "full"
    report = agreement(measured(), WEIGHTS, scores).report
    assert recommended(report.described_levels()).name == "h72"
    said = advice(report)
    assert said
    assert said.startswith(f"Take h72, the fastest level that {RULE}, on no kind of text more than {MAX_KIND_LOSS}. ")
    assert "ΔBLEU: -0.20 [-0.41, +0.01]" in said
    assert "h72-int8 is 2.5 times as fast, ΔBLEU -2.00" in said
    assert said.endswith(" BLEU as it was recorded, on 20 sentences of two kinds of text.")


def test_rounding_of_another_processor_is_within_the_interval(scores: dict[str, ShippedScores]) -> None:
    found = agreement(measured(**{"full": 30.2, "h72": 28.9, "h72-int8": 28.5, "Peer": 29.8}), WEIGHTS, scores)
    assert found.holds
    assert "agree: 0 of 3 levels translate them as when they were scored, and the others lose as much" in found.said
    assert all(system.recorded for system in found.report.systems)


@pytest.mark.parametrize(
    ("now", "named"), [({"full": 30.6}, "full"), ({"h72": 20.0, "h72-int8": 10.0}, "h72, h72-int8")]
)
def test_another_bleu_is_not_what_was_scored(
    now: dict[str, float], named: str, scores: dict[str, ShippedScores]
) -> None:
    report = measured(**now)
    for one in report.levels[1:]:  # the interval moves with the difference
        quality = one.quality[0]
        ends = {"ci_low": quality.bleu_delta - 0.4, "ci_high": quality.bleu_delta + 0.4}
        moved = replace(one, quality=(quality.model_copy(update=ends),))
        report = replace(report, levels=tuple(moved if x.name == one.name else x for x in report.levels))
    found = agreement(report, WEIGHTS, scores)
    assert not found.holds
    assert f"{named} translate these 10 sentences with another BLEU" in found.said
    assert found.report == report, "what was measured decides"


def test_other_weights_and_other_sentences_were_not_scored(scores: dict[str, ShippedScores]) -> None:
    found = agreement(measured(), WEIGHTS | {"h72": "others"}, scores)
    assert not found.holds
    assert found.said == "There are no recorded scores of h72: these 10 sentences decide."
    one = scores["h72"]
    scores["h72"] = one.model_copy(update={"sample": one.sample.model_copy(update={"sentences": 11})})
    assert not agreement(measured(), WEIGHTS, scores).holds


def test_an_engine_that_differs_has_no_recorded_scores_and_levels_keep_theirs(scores: dict[str, ShippedScores]) -> None:
    scores["Peer"] = scores["Peer"].model_copy(
        update={"sample": Sample(sentences=10, translations="", bleu=1.0, bleu_delta=-29.0)}
    )
    found = agreement(measured(), WEIGHTS, scores)
    assert found.holds
    assert [system.recorded is None for system in found.report.systems] == [False, False, False, True]


def test_the_shipped_scores_are_of_the_shipped_weights() -> None:
    scores = read_scores(demo_steps.SCORES)
    names = ["full", "full-int8", *(f"h{heads}-int8" for heads in demo_steps.HEADS), "fast-int8"]
    folders = [demo_steps.CHECKPOINT] * 2 + [demo_steps.LEVELS] * len(demo_steps.HEADS) + [demo_steps.FAST]
    for level, folder in zip(names, folders, strict=True):
        assert scores[level].checkpoint == checkpoint_digest(folder), f"{level}: score it again"
        assert tuple(scores[level].quality.kinds) == KINDS
        assert " --part test " in scores[level].quality.command
    assert [name for name in scores if name != "CTranslate2"] == names


def row(quality: Quality) -> str:
    """The cells of a table: BLEU of each kind, their mean, and the difference with its interval."""
    cells = [*(f"{kind.bleu:.1f}" for kind in quality.kinds.values()), f"{quality.bleu:.2f}"]
    delta = f"{quality.bleu_delta:+.2f} [{quality.ci_low:+.2f}, {quality.ci_high:+.2f}]".replace("-", "−")
    return " | ".join([*cells, "–" if quality.bleu_delta == 0 else delta])


def test_pages_tell_the_recorded_scores_and_the_measured_times() -> None:
    scores = read_scores(demo_steps.SCORES)
    levels = (REPOSITORY / "docs" / "measurements" / "levels.md").read_text(encoding="utf-8")
    card = (demo_steps.DATA / "MODEL_CARD.md").read_text(encoding="utf-8")
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    for name, scored in scores.items():
        for page in (levels, card) if name == "full" else (levels,):
            assert row(scored.quality) in page, name
    alone = speeds(1)
    for name, shown in NAMES.items():
        if name != "CTranslate2":
            faster = f"{alone[name] / alone['full-int8']:.1f}".removesuffix(".0")
            cells = f" | {scores[name].quality.bleu:.1f} | {faster} | {alone[name]:.1f} |"
            assert any(shown in line and line.endswith(cells) for line in readme.splitlines()), f"{shown}{cells}"


def test_pages_recommend_the_level_of_the_rule() -> None:
    """By the recorded scores and the times of the report, in int8; fp32 is slower than the same level in int8."""
    scores = read_scores(demo_steps.SCORES)
    report = times()
    embedded = [level for level in report.levels if level.name in scores]
    levels = tuple(replace(level, recorded=scores[level.name].quality) for level in embedded)
    best = recommended(replace(report, levels=levels).described_levels()).name
    for page in ("README.md", "docs/measurements/levels.md", "docs/decisions/0039-which-level-is-recommended.md"):
        assert f"`{best}`" in (REPOSITORY / page).read_text(encoding="utf-8"), page

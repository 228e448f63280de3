"""Which levels an update trains, how heads are ranked, and what the result of nested fine-tuning is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.command import done, run_hmc
from tests.support.updates import interrupted
from tests.tiny import tiny_architecture, tiny_checkpoint_at

from hmc.artifact import InvalidRequestError, load_checkpoint
from hmc.artifact.model.budgets import parse_budgets
from hmc.artifact.model.heads import KINDS, HeadScores, select_heads
from hmc.training import PruneRequest, PruneSettings, average_tensors
from hmc.training.distillation.settings import DistillSection
from hmc.training.pruning.levels import Levels, ranking_without_closing
from hmc.training.pruning.nested import NestedRun
from hmc.training.pruning.run import prune
from hmc.training.pruning.settings import NestedSection
from hmc.training.runs.recipe import RunSection

RUN = RunSection(device="cpu", eval_sentences=2, eval_every=2, save_every=3, keep_checkpoints=2)
SETTINGS = PruneSettings(batch_tokens=256, run=RUN, nested=NestedSection(heads="gates"))
STEPS = 8


def scores(seed: int) -> HeadScores:
    random = np.random.default_rng(seed)
    return {kind: random.standard_normal((2, 4)).astype(np.float32) for kind in KINDS}


def nested(folder: Path, out: Path, budgets: str = "12,5", steps: int = STEPS, **settings: Any) -> NestedRun:
    text = f"{folder}/t.en {folder}/t.de"
    chosen = SETTINGS.model_copy(update=settings)
    return NestedRun(PruneRequest(folder / "c", parse_budgets(budgets), [text], text, out, chosen, nested_steps=steps))


def levels(budgets: list[int], **settings: Any) -> Levels:
    layout = tiny_architecture().full_layout()
    return Levels(layout, scores(1), budgets, NestedSection(**settings), seed=1, steps=100)


def test_a_sandwich_is_the_largest_the_smallest_and_one_between() -> None:
    drawn = [levels([24, 18, 12, 5]).trained(step) for step in range(1, 101)]
    assert {tuple(heads) for heads in drawn} == {(24, 18, 5), (24, 12, 5)}
    between = [levels([24, 12, 5], between="any").trained(step)[1] for step in range(1, 401)]
    assert set(between) == set(range(6, 24))
    assert levels([24, 5]).trained(1) == [24, 5]
    assert levels([24]).trained(1) == [24], "the control"
    assert {tuple(levels([24, 12, 5], levels="one").trained(step)) for step in range(1, 101)} == {(24,), (12,), (5,)}


def test_the_smallest_level_sees_its_source() -> None:
    ranking = {**scores(1), "cross": scores(1)["cross"] - 100}
    with pytest.raises(
        InvalidRequestError, match="nested level of 5 heads: no head of cross-attention would stay open"
    ):
        Levels(tiny_architecture().full_layout(), ranking, [24, 5], NestedSection(), seed=1, steps=100)


def test_the_smallest_level_learns_only_vectors(folder: Path, tmp_path: Path) -> None:
    assert levels([24, 12, 5], levels="smallest").trained(7) == [5]
    section = NestedSection(heads="gates", levels="smallest")
    made = load_checkpoint(nested(folder, tmp_path / "n", "5", freeze="matrices", nested=section).run())
    before = load_checkpoint(folder / "c")
    moved = {name for name, value in made.tensors.items() if not np.array_equal(value, before.tensors[name])}
    assert moved
    assert moved <= {name for name in moved if name.endswith("bias") or "layer_norm" in name}
    assert made.layout == before.layout
    assert list(made.metrics) == ["dev_h5"]


def test_levels_shrink_over_the_first_part() -> None:
    shrinking = levels([24, 12, 5], shrink=0.5)
    assert [shrinking.budgets_at(step) for step in (1, 25, 50, 100)] == [
        [24, 24, 24], [24, 18, 14], [24, 12, 5], [24, 12, 5],
    ]  # fmt: skip
    assert levels([24, 12, 5]).budgets_at(1) == [24, 12, 5]
    assert shrinking.layout_of(5).total == 5
    assert shrinking.layout_of(12).contains(shrinking.layout_of(5))


def test_rankings() -> None:
    gates, importance = scores(1), scores(2)
    layout = tiny_architecture().full_layout()

    class Source:
        def __init__(self, found: HeadScores | None) -> None:
            self.gates, self.layout = found, layout

    def best(how: str, found: HeadScores | None = gates, number: int = 7) -> set[str]:
        ranking = ranking_without_closing(Source(found), how, lambda: importance)  # type: ignore[arg-type]
        return set(map(str, select_heads(ranking, layout, number).heads()))

    assert best("gates") == set(map(str, select_heads(gates, layout, 7).heads()))
    assert best("importance", None) == set(map(str, select_heads(importance, layout, 7).heads()))
    assert best("gates") != best("importance") != best("both") != best("gates")
    assert best("gates", number=16) & best("importance", number=16) >= best("both", number=2)
    with pytest.raises(InvalidRequestError, match="this checkpoint has none"):
        best("both", None)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"distill": DistillSection(weight=0.5, temperature=2, hidden=0.1, attention=0.1), "accumulate": 2},
        {
            "distill": DistillSection(weight=0.5),
            "nested": NestedSection(heads="importance", teacher="in-place", shrink=0.5, between="any"),
        },
    ],
)
def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    whole = load_checkpoint(nested(folder, tmp_path / "whole", **settings).run())
    assert not np.array_equal(whole.tensors["shared.weight"], load_checkpoint(folder / "c").tensors["shared.weight"])
    with interrupted(6):
        nested(folder, tmp_path / "p", **settings).run()
    resumed_run = nested(folder, tmp_path / "p", **settings)
    assert resumed_run.progress.step == 3
    resumed = load_checkpoint(resumed_run.run())
    assert all(np.array_equal(whole.tensors[name], resumed.tensors[name]) for name in whole.tensors)
    assert whole.metrics == resumed.metrics
    assert all(np.array_equal(whole.gates[kind], resumed.gates[kind]) for kind in KINDS)  # type: ignore[index]


def test_the_result_is_the_average_of_the_checkpoints_of_highest_mean_bleu(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BLEU by level and update is made up: the mean over the levels is highest at updates 2 and 6."""
    bleu = {2: (30, 20, 10), 4: (50, 1, 1), 6: (21, 20, 22), 8: (0, 0, 40)}
    run = nested(folder, tmp_path / "p")
    made: list[float] = []

    class Made:
        def __init__(self, value: float) -> None:
            self.bleu = value

        def to_json(self) -> dict[str, object]:
            return {"bleu": self.bleu}

    def evaluate(*_: object, beam: int) -> Made:
        if beam == 4:
            return Made(7.0)
        made.append(0.0)
        return Made(bleu[run.progress.step][(len(made) - 1) % 3])

    monkeypatch.setattr("hmc.training.pruning.nested.evaluate", evaluate)
    result = load_checkpoint(run.run())
    assert result.config.provenance["checkpoints"] == [2, 6]
    kept = [load_checkpoint(tmp_path / "p" / "nested-checkpoints" / f"step-{step:07d}") for step in (2, 6)]
    expected = average_tensors(kept)
    np.testing.assert_allclose(result.tensors["shared.weight"], expected["shared.weight"], rtol=1e-5, atol=1e-7)
    assert not np.allclose(result.tensors["shared.weight"], kept[1].tensors["shared.weight"], atol=1e-7)
    assert result.metrics.keys() == {"dev_h24", "dev_h12", "dev_h5"}


def test_another_teacher_or_other_settings_do_not_resume(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_checkpoint_at(tmp_path / "other", seed=5)
    taught = DistillSection(weight=0.5, teacher=str(tmp_path / "other"))
    run = nested(folder, tmp_path / "p", distill=taught)
    assert run.progress.teacher
    run.run()
    monkeypatch.chdir(tmp_path)
    nested(folder, tmp_path / "p", distill=DistillSection(weight=0.5, teacher="./other"))
    tiny_checkpoint_at(tmp_path / "other", seed=6)
    with pytest.raises(InvalidRequestError, match="the teacher is not the one"):
        nested(folder, tmp_path / "p", distill=taught)
    with pytest.raises(InvalidRequestError, match=r"other settings \(distill\.teacher: \./other there, not set here\)"):
        nested(folder, tmp_path / "p", distill=DistillSection(weight=0.5))


@pytest.mark.parametrize(
    ("budgets", "message"),
    [("5,12", "falling numbers"), ("24", "falling numbers"), ("enc=4,dec=4,cross=4", "of the whole model")],
)
def test_impossible_levels(folder: Path, tmp_path: Path, budgets: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        nested(folder, tmp_path / "p", budgets)


@pytest.mark.parametrize(
    ("settings", "steps", "message"),
    [
        ({}, 0, "nested.heads belongs to nested_steps"),
        ({"nested": NestedSection(teacher="in-place")}, 2, "in-place belongs to distill.weight"),
        (
            {"nested": NestedSection(teacher="in-place"), "distill": DistillSection(weight=0.9, teacher="c")},
            2,
            "leave the teacher out",
        ),
    ],
)
def test_requests_that_contradict_themselves(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], steps: int, message: str
) -> None:
    monkeypatch.chdir(folder)
    text, chosen = f"{folder}/t.en {folder}/t.de", SETTINGS.model_copy(update=settings)
    with pytest.raises(InvalidRequestError, match=message):
        prune(
            PruneRequest(folder / "c", parse_budgets("12,5"), [text], text, tmp_path / "p", chosen, nested_steps=steps)
        )


def test_the_command_makes_levels_with_a_teacher(folder: Path, tmp_path: Path) -> None:
    arguments = [
        "prune", str(folder / "c"), "--target-heads", "12,5", "--nested-steps", "3", "--nested-heads", "both",
        "--nested-teacher", "in-place", "--nested-shrink", "0.5", "--distill", "0.9", "--temperature", "2",
        "--device", "cpu", "--batch-tokens", "256", "--eval-sentences", "1", "--eval-every", "2",
        "--data", f"{folder}/t.en {folder}/t.de", "--dev", f"{folder}/t.en {folder}/t.de", "-o", str(tmp_path / "p"),
    ]  # fmt: skip
    done(run_hmc(arguments))
    made = load_checkpoint(tmp_path / "p" / "nested").config.provenance["settings"]
    assert made["distill"] == {"weight": 0.9, "temperature": 2, "hidden": 0, "attention": 0, "teacher": None}
    assert made["nested"]["heads"] == "both"
    for option, value in (("--distill", "1.5"), ("--nested-levels", "two")):
        refused = run_hmc([*arguments, option, value])
        assert refused.exit_code != 0
        assert f"{option} " in refused.output.replace(f"{option}:", f"{option} ")

"""Runs that prune to a latency: goals are kept, measured models correct the choice, interrupted runs go on alike."""

from __future__ import annotations

import re
import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.artifact.model.test_latency import table, whole
from tests.artifact.model.test_layers import without_layers
from tests.support.updates import interrupted

from hmc.artifact import Checkpoint, HeadBudget, InvalidRequestError, load_checkpoint, save_checkpoint
from hmc.artifact.model.heads import KINDS
from hmc.artifact.model.latency import Sizes
from hmc.artifact.model.layers import RemovedLayers
from hmc.artifact.stopping import Stopped
from hmc.training import PruneRequest, PruneSettings, PruningRun
from hmc.training.pruning.schedule import DECIDED_FROM
from hmc.training.pruning.stages import LatencyGoal, LatencyPlan, PruneProgress, goals_of
from hmc.training.runs.folder import working_in
from hmc.training.runs.recipe import RunSection
from hmc.training.runs.state import saved_progress

SETTINGS = PruneSettings(
    close_steps=30,
    recover_steps=3,
    batch_tokens=128,
    run=RunSection(device="cpu", eval_sentences=1, log_every=10, save_every=7),
)
WHOLE_MS = table().ms(whole())


def of(checkpoint: Checkpoint) -> Sizes:
    return Sizes.from_layout(checkpoint.layout, checkpoint.ffn_widths, checkpoint.removed_layers)


def run(folder: Path, out: Path, plan: LatencyPlan, **changes: object) -> list[Checkpoint]:
    corpus = f"{folder}/t.en {folder}/t.de"
    settings = SETTINGS.model_copy(update=changes)
    return [
        load_checkpoint(path)
        for path in PruningRun(PruneRequest(folder / "c", [], [corpus], corpus, out, settings, latency=plan)).run()
    ]


def test_several_goals_are_kept_one_after_the_other(folder: Path, tmp_path: Path) -> None:
    goals = goals_of([1.5, 2.5], [40.0], WHOLE_MS)
    assert [goal.name for goal in goals] == ["40ms", "1.5x", "2.5x"]
    pruned = run(folder, tmp_path / "p", LatencyPlan(table(), goals))
    for goal, checkpoint in zip(goals, pruned, strict=True):
        assert goal.ms * 0.75 < table().ms(of(checkpoint)) <= goal.ms
        assert (tmp_path / "p" / goal.name / "config.json").is_file()
        assert checkpoint.config.provenance["latency"]["goal_ms"] == goal.ms
    for wide, narrow in pairwise(pruned):
        assert wide.layout.contains(narrow.layout)
        assert set(wide.removed_layers.encoder) <= set(narrow.removed_layers.encoder)


def test_measured_latencies_correct_the_choice(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Sizes] = []

    def slower(model: Checkpoint) -> float:
        """The machine takes a quarter longer than the table says."""
        seen.append(of(model))
        return table().ms(of(model)) * 1.25

    goal = LatencyGoal("half", WHOLE_MS / 2)
    [pruned] = run(folder, tmp_path / "p", LatencyPlan(table(), (goal,), slower))
    assert len(seen) >= 2
    assert table().ms(seen[0]) * 1.25 > goal.ms
    assert table().ms(of(pruned)) * 1.25 <= goal.ms
    assert of(pruned) in seen, "what is trained and kept is a model that was measured"
    tried = pruned.config.provenance["latency"]["tried"]
    assert [ms for _, ms in tried] == [table().ms(sizes) * 1.25 for sizes in seen]
    assert "half: table and measurement are 25% apart" in " ".join(capsys.readouterr().err.split())


def test_an_interrupted_run_ends_at_the_same_model(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also by a signal while a model is measured: the updates before are saved."""
    goals = goals_of([2.0], [], WHOLE_MS)
    plan = LatencyPlan(table(), goals, lambda model: table().ms(of(model)) * 1.1)

    def stopped(_: Checkpoint) -> float:
        signal.raise_signal(signal.SIGTERM)
        return 0.0

    [expected] = run(folder, tmp_path / "whole", plan)
    assert "apart" not in capsys.readouterr().err, "a tenth is within what a table may be wrong by"
    broken, last = tmp_path / "broken", int(DECIDED_FROM * 30)
    with interrupted(9):
        run(folder, broken, plan)
    with pytest.raises(Stopped, match="the last state that was saved in"), working_in(broken):
        run(folder, broken, LatencyPlan(table(), goals, stopped))
    assert saved_progress(broken / "state", PruneProgress).step == last == 25
    with interrupted(29 - last):
        run(folder, broken, plan)
    [found] = run(folder, broken, plan)
    assert of(found) == of(expected)
    for name, tensor in expected.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], tensor)


def test_a_pruned_model_can_be_pruned_again(folder: Path, tmp_path: Path) -> None:
    first = without_layers(load_checkpoint(folder / "c"), RemovedLayers(encoder=(0,), decoder=(1,)))
    corpus, source = f"{folder}/t.en {folder}/t.de", tmp_path / "first"
    save_checkpoint(first, source)
    goals = goals_of([], [table().ms(of(first)) * 0.8], 1.0)
    again = PruningRun(
        PruneRequest(source, [], [corpus], corpus, tmp_path / "q", SETTINGS, latency=LatencyPlan(table(), goals))
    )
    found = load_checkpoint(again.run()[0])
    assert table().ms(of(found)) <= goals[0].ms
    assert found.removed_layers == first.removed_layers, "each stack keeps its last layer"


@pytest.mark.parametrize(
    ("plan", "changes", "problem"),
    [
        (LatencyPlan(table(), (LatencyGoal("1.0x", WHOLE_MS),)), {}, "takes .* ms already"),
        (LatencyPlan(table(), (LatencyGoal("9x", 11.0),)), {}, "9x: 11.00 ms cannot be reached"),
        (LatencyPlan(table(), (LatencyGoal("a", 20.0), LatencyGoal("b", 30.0))), {}, "from the slowest"),
        (
            LatencyPlan(table(), (LatencyGoal("a", 20.0),)),
            {"scope": KINDS[:1]},
            "scope: a latency decides",
        ),
        (LatencyPlan(table(), (LatencyGoal("a", 20.0),)), {"l0_lambda": 0.1}, "without target_heads"),
        (LatencyPlan(table(), (LatencyGoal("a", 20.0),)), {"settle_gates": True}, "belongs to l0_lambda"),
    ],
)
def test_what_cannot_be_reached_is_refused(
    folder: Path, tmp_path: Path, plan: LatencyPlan, changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        run(folder, tmp_path / "p", plan, **changes)
    assert not (tmp_path / "p").exists()


def test_a_table_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    other = table().model_copy(update={"architecture": table().architecture.model_copy(update={"ffn_dim": 64})})
    plan = LatencyPlan(other, (LatencyGoal("a", 20.0),))
    with pytest.raises(InvalidRequestError, match="another architecture"):
        run(folder, tmp_path / "p", plan)
    corpus = f"{folder}/t.en {folder}/t.de"
    with pytest.raises(InvalidRequestError, match=re.escape("give it without target_heads")):
        PruningRun(
            PruneRequest(
                folder / "c",
                [HeadBudget(((KINDS, 12),))],
                [corpus],
                corpus,
                tmp_path / "p",
                SETTINGS,
                latency=replace(plan, table=table()),
            )
        )

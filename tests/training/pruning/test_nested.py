"""Nested fine-tuning: every update trains the heads of one budget and no other head."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.files import write_pair
from tests.support.updates import after_updates
from tests.tiny import SENTENCES, tiny_checkpoint_at

from hmc.artifact import Head, load_checkpoint
from hmc.training import PruneRequest, PruneSettings, PruningRun
from hmc.training.pruning.nested import NestedRun
from hmc.training.pruning.settings import NestedSection
from hmc.training.runs.recipe import RunSection

SETTINGS = PruneSettings(
    close_steps=10, recover_steps=1, batch_tokens=512, run=RunSection(device="cpu", eval_sentences=1),
    nested=NestedSection(levels="one"),
)  # fmt: skip
STEPS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint `c` of 24 heads, a corpus `t`, and a pruning run `p` to 12 and to 5 heads."""
    folder = tmp_path_factory.mktemp("nested")
    tiny_checkpoint_at(folder / "c")
    write_pair(folder, SENTENCES * 2)
    PruningRun(PruneRequest(folder / "c", [12, 5], [text(folder)], text(folder), folder / "p", SETTINGS)).run()
    return folder


def text(folder: Path) -> str:
    return f"{folder}/t.en {folder}/t.de"


def nested(folder: Path, out: Path, settings: PruneSettings = SETTINGS) -> NestedRun:
    pruned = [folder / "p" / name for name in ("h12", "h5")]
    return NestedRun(
        PruneRequest(folder / "c", (), [text(folder)], text(folder), out, settings, nested_steps=STEPS), pruned
    )


def trained_heads(run: NestedRun) -> set[Head]:
    """Heads whose columns of W_O got a gradient in the last update."""
    found = set()
    for kind, layer, attention in run.model.attentions():
        assert attention.out_weight.grad is not None
        by_head = attention.out_weight.grad.view(-1, attention.heads, attention.head_dim).abs().sum((0, 2))
        found |= {Head(kind, layer, int(index)) for index in by_head.nonzero()[:, 0]}
    return found


def updates_of(run: NestedRun) -> list[set[Head]]:
    """Trains, and returns the heads that each update trained."""
    found: list[set[Head]] = []
    with after_updates(lambda _: found.append(trained_heads(run))):
        run.run()
    return found


def test_an_update_trains_the_heads_of_its_budget_alone(folder: Path, tmp_path: Path) -> None:
    run = nested(folder, tmp_path / "n")
    drawn = [run.levels.trained(step) for step in range(1, STEPS + 1)]
    expected = [set(run.levels.layout_of(heads).heads()) for [heads] in drawn]
    assert {len(heads) for heads in expected} == {24, 12, 5}, "every budget is drawn: else choose more steps"
    assert updates_of(run) == expected


def test_without_the_mask_that_would_be_noticed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmc.training.pruning.nested.select_layout", lambda *_: None)
    assert {len(heads) for heads in updates_of(nested(folder, tmp_path / "n"))} == {24}


def test_levels_are_nested_and_scored_apart(folder: Path, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(nested(folder, tmp_path / "n").run())
    assert checkpoint.layout.total == 24
    assert checkpoint.metrics.keys() == {"dev_h24", "dev_h12", "dev_h5"}


def test_accumulation_and_warm_up_reach_nested_fine_tuning(folder: Path, tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"accumulate": 3, "warmup_steps": 4})
    run, rates = nested(folder, tmp_path / "n", settings), []
    with after_updates(lambda optimizer: rates.append(optimizer.param_groups[0]["lr"])):
        run.run()
    falling = [SETTINGS.learning_rate * (1 - step / STEPS) for step in range(STEPS)]
    assert rates == pytest.approx([rate * min(1, (step + 1) / 4) for step, rate in enumerate(falling)])
    assert run.loop.updater.settings.accumulate == 3

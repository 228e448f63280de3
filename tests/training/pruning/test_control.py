"""The control of a pruning run: all heads, trained for as many further updates as the levels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.command import done, run_hmc
from tests.support.files import write_pair
from tests.support.updates import after_updates
from tests.tiny import SENTENCES, tiny_checkpoint_at

from hmc.artifact import InvalidRequestError, load_checkpoint, save_checkpoint
from hmc.artifact.model.budgets import parse_budgets
from hmc.training import PruneRequest, PruneSettings
from hmc.training.pruning.control import ControlRun, compared, train_control
from hmc.training.pruning.run import prune
from hmc.training.runs.recipe import RunSection

RUN = RunSection(device="cpu", eval_sentences=1, save_every=4, eval_every=100)
SETTINGS = PruneSettings(close_steps=10, recover_steps=2, batch_tokens=512, run=RUN)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint `c` of 24 heads, and a corpus `t`."""
    folder = tmp_path_factory.mktemp("control")
    tiny_checkpoint_at(folder / "c")
    write_pair(folder, SENTENCES * 2)
    return folder


def text(folder: Path) -> str:
    return f"{folder}/t.en {folder}/t.de"


def test_it_has_as_many_updates_as_the_last_level_and_all_heads(folder: Path, tmp_path: Path) -> None:
    made = 0

    def count(_: object) -> None:
        nonlocal made
        made += 1

    def again(*, control: bool) -> list[Path]:
        budgets = parse_budgets("12,5")
        return prune(
            PruneRequest(folder / "c", budgets, [text(folder)], text(folder), tmp_path / "p", SETTINGS, control=control)
        )

    with after_updates(count):
        levels = again(control=False)
    assert made == 24
    with after_updates(count):
        *same, control = again(control=True)
    assert same == levels
    assert made == 48, "a run that has ended gets its control, and nothing else is trained again"
    found, source = load_checkpoint(control), load_checkpoint(folder / "c")
    assert control.name == "control"
    assert found.layout == source.layout
    assert found.config.provenance["steps"] == 24
    assert any((found.tensors[name] != source.tensors[name]).any() for name in source.tensors), "it was trained"
    with after_updates(count):
        assert again(control=True) == [*levels, control]
    assert made == 48


def test_an_interrupted_control_goes_on(folder: Path, tmp_path: Path) -> None:
    with after_updates(lambda _: None):
        run = ControlRun(
            PruneRequest(folder / "c", (), [text(folder)], text(folder), tmp_path / "p", SETTINGS, nested_steps=6)
        )

    class Killed(Exception):
        pass

    seen: list[object] = []

    def kill(update: object) -> None:
        seen.append(update)
        if len(seen) == 5:
            raise Killed

    with pytest.raises(Killed), after_updates(kill):
        run.run()
    seen.clear()
    with after_updates(seen.append):
        train_control(PruneRequest(folder / "c", (), [text(folder)], text(folder), tmp_path / "p", SETTINGS), 6)
    assert len(seen) == 2, "update 4 was saved"
    with pytest.raises(InvalidRequestError, match="has 6 steps, not 8; give the numbers of updates that it began"):
        train_control(PruneRequest(folder / "c", (), [text(folder)], text(folder), tmp_path / "p", SETTINGS), 8)


def scored(folder: Path, name: str, before: float, after: float) -> Path:
    """A pruned checkpoint with these dev scores, of 500 sentences."""
    scores = {"chrf": 50.0, "bleu_signature": "b", "chrf_signature": "c", "sentences": 500, "beam": 4}
    metrics = {"dev_before": {"bleu": before, **scores}, "dev_after": {"bleu": after, **scores}}
    save_checkpoint(replace(load_checkpoint(folder / "c"), metrics=metrics), folder / name)
    return folder / name


def test_a_level_that_gains_more_than_noise_is_a_warning(folder: Path) -> None:
    gains, same = scored(folder, "gains", 20.0, 23.9), scored(folder, "same", 20.0, 21.0)
    said = compared([gains, same])
    assert said == {
        gains: "+3.90 BLEU over the checkpoint that was pruned, which was not finished: all heads would gain too by as "
        "many updates (`hmc prune --control` trains that control)"
    }


def test_with_a_control_levels_are_compared_with_it(folder: Path, tmp_path: Path) -> None:
    control = train_control(PruneRequest(folder / "c", (), [text(folder)], text(folder), tmp_path / "p", SETTINGS), 2)
    [scores] = load_checkpoint(control).metrics.values()
    gains = scored(folder, "level", 0.0, 3.9)
    expected = f"{3.9 - scores['bleu']:+.2f} BLEU against all heads after as many updates ({scores['bleu']:.2f})"
    assert compared([gains, control]) == {gains: expected}


def test_the_command_trains_the_control_and_says_what_it_says(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "p"
    words = ["prune", folder / "c", "--data", text(folder), "--dev", text(folder), "--target-heads", "12", "-o", out]
    words += ["--close-steps", 10, "--recover-steps", 2, "--eval-sentences", 1, "--batch-tokens", 512, "--control"]
    words += ["--device", "cpu"]
    planned = done(run_hmc([*map(str, words), "--dry-run"])).stdout
    assert "control: all heads, 12 updates" in planned
    rows = json.loads(done(run_hmc([*map(str, words), "--json"])).stdout)
    assert [Path(row["checkpoint"]).name for row in rows] == ["h12", "control"]
    assert "against all heads after as many updates" in rows[0]["compared"]
    assert "compared" not in rows[1]

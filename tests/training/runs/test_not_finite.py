"""Losses that are NaN: such updates are skipped and counted, no state is saved after them, and many stop the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.files import write_pair
from tests.tiny import SENTENCES, tiny_checkpoint_at
from tests.training.pruning.test_run_inputs import SETTINGS, recipe
from tests.training.runs.test_updater import make_model, make_updater

from hmc.artifact import InvalidRequestError, load_checkpoint
from hmc.training import PruneRequest, PruningRun, nested_finetune, train
from hmc.training.runs.recipe import OptimizerName
from hmc.training.runs.updater import MOST_SKIPPED, SummedLoss, Tally

CPU = torch.device("cpu")
DIVERGED = "10 updates in a row had a loss or gradient that was NaN"


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return write_pair(tmp_path / "text", SENTENCES * 2)


@pytest.fixture
def break_losses(monkeypatch: pytest.MonkeyPatch) -> Callable[[Collection[int]], None]:
    """Makes the losses with these numbers, from 1, NaN."""
    forward = SummedLoss.forward

    def plant(numbers: Collection[int]) -> None:
        count = 0

        def broken(self: SummedLoss, *fields: object) -> torch.Tensor:
            nonlocal count
            count += 1
            found = forward(self, *fields)  # type: ignore[arg-type]
            assert isinstance(found, torch.Tensor)
            return found * float("nan") if count in numbers else found

        monkeypatch.setattr(SummedLoss, "forward", broken)

    return plant


def rows(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def test_the_line_of_a_log_has_the_mean_of_its_updates() -> None:
    tally, yes, no = Tally(CPU), torch.tensor(True), torch.tensor(False)
    tally.add(torch.tensor(6.0), torch.tensor(2), yes)
    tally.add(torch.tensor(float("nan")), torch.tensor(5), no)
    assert not tally.check()
    tally.add(torch.tensor(4.0), torch.tensor(8), yes)
    assert tally.check()
    assert tally.line() == {"loss": 1.0, "skipped": 1.0}
    assert tally.line() == {}
    tally.add(torch.tensor(3.0), torch.tensor(1), yes)
    assert tally.line() == {"loss": 3.0}
    for _ in range(MOST_SKIPPED):
        assert tally.check() is not None
        tally.add(torch.tensor(float("inf")), torch.tensor(1), no)
    with pytest.raises(InvalidRequestError, match=DIVERGED):
        tally.check()


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_an_update_with_a_gradient_that_is_not_finite_changes_nothing(optimizer: OptimizerName) -> None:
    model = make_model()
    updater = make_updater(model, [], optimizer=optimizer)
    updater.update(1)

    def everything() -> list[torch.Tensor]:
        state = updater.optimizer.state_dict()["state"]
        return [*model.state_dict().values(), *(torch.as_tensor(v) for each in state.values() for v in each.values())]

    before = [value.clone() for value in everything()]
    for value in (float("nan"), float("inf")):
        found = updater.update(2, lambda value=value: model.shared.weight.sum() * value)  # type: ignore[misc]
        assert torch.isfinite(found.loss_sum), "the gradient alone is not finite"
        assert all(torch.equal(a, b) for a, b in zip(before, everything(), strict=True))
    updater.update(2)
    assert not all(torch.equal(a, b) for a, b in zip(before, everything(), strict=True))
    assert all(torch.isfinite(value).all() for value in everything())


def test_one_broken_update_is_skipped_and_logged(
    corpus: str, tmp_path: Path, break_losses: Callable[[Collection[int]], None]
) -> None:
    break_losses([3])
    final = train(recipe(corpus, train={"steps": 6}), tmp_path / "r")
    assert all(np.isfinite(value).all() for value in load_checkpoint(final).tensors.values())
    lines = [row for row in rows(tmp_path / "r") if "rate" in row]
    assert [row["step"] for row in lines if "skipped" in row] == [3]
    assert [row["step"] for row in lines if "loss" in row] == [1, 2, 4, 5, 6]


def test_no_state_is_saved_over_the_last_finite_one(
    corpus: str, tmp_path: Path, break_losses: Callable[[Collection[int]], None]
) -> None:
    out, settings = tmp_path / "r", recipe(corpus, train={"steps": 30})
    break_losses(range(6, 100))
    with pytest.raises(InvalidRequestError, match=DIVERGED):
        train(settings, out)
    assert json.loads((out / "state" / "progress.json").read_text())["step"] == 5
    break_losses([])
    final = train(settings, out)
    assert load_checkpoint(final).config.provenance["recipe"]["train"]["steps"] == 30
    resumed = [row["step"] for row in rows(out) if "loss" in row][5:]
    assert resumed == list(range(6, 31))


def test_pruning_and_nested_fine_tuning_stop_alike(
    corpus: str, tmp_path: Path, break_losses: Callable[[Collection[int]], None]
) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    settings = SETTINGS.model_copy(update={"close_steps": 30, "recover_steps": 30})

    def run() -> list[Path]:
        return PruningRun(PruneRequest(tmp_path / "c", [9], [corpus], corpus, tmp_path / "p", settings)).run()

    for first, stage, step in ((4, 0, 3), (34, 1, 6)):  # the second run goes on after update 3 of the first stage
        break_losses(range(first, 1000))
        with pytest.raises(InvalidRequestError, match=DIVERGED):
            run()
        progress = json.loads((tmp_path / "p" / "state" / "progress.json").read_text())
        assert (progress["stage"], progress["step"]) == (stage, step)
    break_losses([2])
    written = run()
    assert sum(row.get("skipped", 0) for row in rows(tmp_path / "p"))
    break_losses(range(7, 1000))
    with pytest.raises(InvalidRequestError, match=DIVERGED):
        nested_finetune(
            PruneRequest(tmp_path / "c", (), [corpus], corpus, tmp_path / "p", settings, nested_steps=30), written
        )
    progress = json.loads((tmp_path / "p" / "nested-state" / "progress.json").read_text())
    assert progress["step"] == 3, "an update has two forward passes"

"""Early stopping: when a run ends before its last update, what it says, and how it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.files import bytes_of, write_pair
from tests.support.recipes import small_recipe
from tests.support.updates import interrupted
from tests.tiny import SENTENCES

from hmc.artifact import HmcError, InvalidRequestError, load_checkpoint
from hmc.training import Recipe, train
from hmc.training.runs.recipe import TrainSection
from hmc.training.runs.selection import why_ended
from hmc.training.trainer.trainer import plan_training


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return write_pair(tmp_path / "text", SENTENCES * 4)


def recipe(corpus: str, patience: int | None, **train: Any) -> Recipe:
    """Up to twelve updates, with an evaluation after every second one. They learn so little that no BLEU is better."""
    settings = {"steps": 12, "dropout": 0.2, "warmup_steps": 1, "learning_rate": 1e-7, "patience": patience}
    run = {"save_every": 5, "eval_every": 2, "log_every": 2}
    return small_recipe(corpus, train=settings | train, run=run)


def progress(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "state" / "progress.json").read_text())
    return found


@pytest.mark.parametrize(
    ("bleu", "patience", "ends"),
    [
        ([], 1, False),
        ([0.0, 0.0, 0.0], 1, False),  # all within the warm-up
        ([0.0, 0.0, 0.0, 0.0], 1, True),
        ([0.0, 0.0, 0.0, 0.0], 2, False),
        ([1.0, 2.0, 3.0, 4.0, 3.0], 1, True),
        ([1.0, 2.0, 3.0, 4.0, 3.0], 2, False),
        ([1.0, 2.0, 3.0, 4.0, 3.0, 4.0], 2, True),  # equal is not better
        ([1.0, 2.0, 3.0, 4.0, 3.0, 4.1], 2, False),
        ([9.0, 2.0, 3.0, 4.0, 5.0], 2, True),  # the best one came in the warm-up
        ([9.0, 2.0, 3.0, 4.0, 5.0], None, False),
    ],
)
def test_what_patience_counts(bleu: list[float], patience: int | None, ends: bool) -> None:
    settings = TrainSection(patience=patience, warmup_steps=30)
    evaluations = [{"step": 10 * number, "bleu": value} for number, value in enumerate(bleu, 1)]
    assert (why_ended(settings, evaluations) is not None) == ends


def test_a_run_ends_early_says_so_and_goes_on(corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The weights are those of a run that had the larger patience from the start."""
    out = tmp_path / "run"
    final = train(recipe(corpus, 2), out)
    said = capsys.readouterr().err
    assert "ended after update 6 of 12: no better dev BLEU in 2 evaluation(s) (train.patience 2); the best is" in said
    assert "after update 2. A larger train.patience goes on" in said
    assert [entry["step"] for entry in progress(out)["evaluations"]] == [2, 4, 6]
    assert progress(out)["step"] == 6
    before = bytes_of(out)
    assert train(recipe(corpus, 2), out) == final
    assert f"{out} is finished: ended after update 6 of 12: no better dev BLEU" in capsys.readouterr().err
    told = plan_training(recipe(corpus, 2), out)
    assert told["folder"].startswith(f"{out}: ended after 6 updates: no better dev BLEU in 2 evaluation(s)")
    assert "or until 2 evaluations have no better dev BLEU" in told["updates"]
    assert plan_training(recipe(corpus, 3), out)["folder"] == f"{out}: goes on after 6 updates"
    assert bytes_of(out) == before
    with interrupted(2):
        train(recipe(corpus, 3), out)
    train(recipe(corpus, 3), out)
    train(recipe(corpus, 3), tmp_path / "whole")
    assert progress(out)["step"] == progress(tmp_path / "whole")["step"] == 8
    state = "state/weights.safetensors"
    assert (out / state).read_bytes() == (tmp_path / "whole" / state).read_bytes()
    left, right = (load_checkpoint(folder / "final").tensors for folder in (out, tmp_path / "whole"))
    assert all(np.array_equal(left[name], right[name]) for name in right)
    train(recipe(corpus, None), out)
    assert progress(out)["step"] == 12


def test_a_run_that_was_killed_before_its_result_does_not_train_on(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it take the result of a shorter patience for its own."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "run"
    for patience, updates in ((1, 4), (2, 6)):
        with monkeypatch.context() as patched:
            patched.setattr("hmc.training.trainer.trainer.TrainingRun._finish", killed)
            with pytest.raises(KeyboardInterrupt):
                train(recipe(corpus, patience), out)
        assert progress(out)["step"] == updates
        final = load_checkpoint(train(recipe(corpus, patience), out))
        assert progress(out)["step"] == updates
        assert final.config.provenance["updates"] == updates


def test_patience_without_evaluations_is_refused(corpus: str, tmp_path: Path) -> None:
    for begin in (train, plan_training):
        with pytest.raises(InvalidRequestError, match=r"train\.patience 2 counts dev evaluations, and run\.eval_every"):
            begin(recipe(corpus, 2, steps=2), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_damaged_progress_is_refused_by_name(corpus: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(recipe(corpus, None, steps=2), out)
    file = out / "state" / "progress.json"
    whole = file.read_bytes()
    changed = whole.replace(b'"step": 2', b'"step": 3', 1)
    assert changed != whole
    for damage in (changed, whole[:40], b""):
        file.write_bytes(damage)
        with pytest.raises(HmcError, match=r"progress\.json is not (as it was written|JSON)"):
            plan_training(recipe(corpus, None, steps=2), out)
    (out / "state" / "digests.json").unlink()  # a state of an earlier version has none
    with pytest.raises(HmcError, match=r"progress\.json is not JSON"):
        plan_training(recipe(corpus, None, steps=2), out)
    file.write_bytes(whole)
    assert plan_training(recipe(corpus, None, steps=2), out)["folder"] == f"{out}: goes on after 2 updates"

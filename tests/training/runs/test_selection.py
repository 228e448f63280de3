"""Checkpoints of a run: how many are kept and how many are averaged are two settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.files import write_pair
from tests.support.recipes import small_recipe
from tests.support.updates import interrupted
from tests.tiny import SENTENCES, tiny_checkpoint_at

from hmc.artifact import InvalidRequestError, load_checkpoint
from hmc.training import Scores, export_tensors, load_recipe, model_from_checkpoint, train
from hmc.training.runs.recipe import RunSection
from hmc.training.runs.selection import AVERAGE_MARGIN, Selection

BLEU = {1: 10.0, 2: 30.0, 3: 20.0, 4: 5.0}
"""Dev BLEU of the checkpoint of each step."""


def selection(folder: Path, **run: Any) -> Selection:
    """Four checkpoints of equal shape and different weights."""
    found = Selection(folder, RunSection(**run), [{"step": step, "bleu": bleu} for step, bleu in BLEU.items()])
    for step in BLEU:
        tiny_checkpoint_at(found.path(step), seed=step)
    return found


def steps_in(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.iterdir())


@pytest.mark.parametrize(
    ("run", "kept", "averaged"),
    [
        ({"keep_checkpoints": 2}, [2, 3], [2, 3]),
        ({"keep_checkpoints": 3, "average_checkpoints": 1}, [1, 2, 3], [2]),
        ({"keep_checkpoints": 4, "average_checkpoints": 2}, [1, 2, 3, 4], [2, 3]),
    ],
)
def test_keeping_and_averaging_are_apart(
    run: dict[str, int], kept: list[int], averaged: list[int], tmp_path: Path
) -> None:
    chosen = selection(tmp_path, **run)
    chosen.remove_surplus()
    assert steps_in(tmp_path) == kept
    assert chosen.averaged() == averaged
    mean = chosen.average(averaged)
    weights = [load_checkpoint(chosen.path(step)).tensors["shared.weight"] for step in averaged]
    np.testing.assert_allclose(mean["shared.weight"], np.mean(weights, axis=0), rtol=1e-6)


def test_what_a_lost_stretch_has_deleted_takes_no_place(tmp_path: Path) -> None:
    """The run was killed after it had deleted its best checkpoint for a better one, of which no state knows."""
    chosen = selection(tmp_path, keep_checkpoints=1)
    shutil.rmtree(chosen.path(2))
    chosen.add(5, 8.0, load_checkpoint(chosen.path(1)))
    assert steps_in(tmp_path) == chosen.averaged() == [3]
    chosen.add(6, 29.0, load_checkpoint(chosen.path(3)))
    assert steps_in(tmp_path) == chosen.averaged() == [6]


def test_every_checkpoint_is_kept_on_request_and_the_best_are_averaged(tmp_path: Path) -> None:
    chosen = selection(tmp_path, keep="every", keep_checkpoints=1, average_checkpoints=2)
    chosen.remove_surplus()
    assert steps_in(tmp_path) == [1, 2, 3, 4]
    assert chosen.averaged() == [2, 3]


@pytest.mark.parametrize("value", [0, 2.5, "often", "0"])
def test_times_of_evaluations_are_numbers_or_epochs(value: object) -> None:
    with pytest.raises(ValueError, match="neither a number of updates, 1 or more, nor epoch"):
        RunSection.model_validate({"eval_every": value})
    assert RunSection.model_validate({"eval_every": "7"}).eval_every == 7


def test_an_evaluation_follows_each_epoch_of_a_resumed_run_too(tmp_path: Path) -> None:
    """An epoch has four batches, each update takes two: evaluations follow updates 2, 4 and 6, and the last one."""
    corpus = write_pair(tmp_path, SENTENCES[:4], SENTENCES[:4])
    run = {"save_every": 1, "eval_every": "epoch", "keep": "every"}
    settings = small_recipe(corpus, train={"steps": 7, "batch_tokens": 16, "accumulate": 2}, run=run)
    with interrupted(5):
        train(settings, tmp_path / "run")
    train(settings, tmp_path / "run")
    assert steps_in(tmp_path / "run" / "checkpoints") == [2, 4, 6, 7]


@pytest.mark.parametrize(("lead", "name"), [(AVERAGE_MARGIN / 2, "average"), (AVERAGE_MARGIN * 2, "best")])
def test_the_best_checkpoint_must_beat_the_average_clearly(lead: float, name: str, tmp_path: Path) -> None:
    chosen = selection(tmp_path, keep_checkpoints=4, average_checkpoints=3)

    scored = []

    def score(candidate: str) -> Scores:
        scored.append(candidate)
        return Scores(30.0 + (lead if candidate.startswith("best") else 0), 0.0, "", "", 1, 4)

    model = model_from_checkpoint(load_checkpoint(chosen.path(1)))
    steps = [2] if name == "best" else [2, 3, 1]
    assert chosen.choose(model, score)[:2] == (name, steps)
    assert scored == ["best of 1 checkpoint(s)", "average of 3 checkpoint(s)"]
    np.testing.assert_array_equal(export_tensors(model)["shared.weight"], chosen.average(steps)["shared.weight"])


def test_one_checkpoint_is_scored_once(tmp_path: Path) -> None:
    chosen = selection(tmp_path, average_checkpoints=1)
    scored = []

    def score(candidate: str) -> Scores:
        scored.append(candidate)
        return Scores(30.0, 0.0, "", "", 1, 4)

    model = model_from_checkpoint(load_checkpoint(chosen.path(1)))
    assert chosen.choose(model, score)[:2] == ("average", [2])
    assert scored == ["average of 1 checkpoint(s)"]


def test_more_averaged_than_kept_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text('[data]\ntrain = ["a b"]\ndev = "a b"\n[run]\nkeep_checkpoints = 2\naverage_checkpoints = 3\n')
    with pytest.raises(InvalidRequestError, match="average_checkpoints 3 is above keep_checkpoints 2"):
        load_recipe(path)


def test_a_run_keeps_more_than_it_averages(tmp_path: Path) -> None:
    corpus = write_pair(tmp_path, SENTENCES)
    run = {"eval_every": 1, "keep_checkpoints": 4, "average_checkpoints": 2}
    final = load_checkpoint(train(small_recipe(corpus, train={"steps": 4}, run=run), tmp_path / "r"))
    assert steps_in(tmp_path / "r" / "checkpoints") == [1, 2, 3, 4]
    assert len(final.config.provenance["checkpoints"]) in (1, 2)
    assert json.loads((tmp_path / "r" / "state" / "progress.json").read_text())["step"] == 4

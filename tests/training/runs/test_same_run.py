"""What is the same run: files are compared by place, a run can be made longer, and what differs is named."""

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
from hmc.training import PruneRequest, PruneSettings, PruningRun, Recipe, train
from hmc.training.runs.folder import differences
from hmc.training.runs.recipe import RunSection
from hmc.training.trainer.trainer import check_same_run


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return write_pair(tmp_path, SENTENCES * 4)


def recipe(corpus: str, **sections: dict[str, Any]) -> Recipe:
    """Six updates with dropout, so that random numbers matter."""
    settings = {"steps": 6, "dropout": 0.2} | sections.pop("train", {})
    run = {"save_every": 2, "eval_every": 4, "log_every": 2} | sections.pop("run", {})
    return small_recipe(corpus, train=settings, run=run, **sections)


def assert_equal(one: Path, other: Path) -> None:
    """Both runs have the same weights, in their state and at their end."""
    files = ("state/weights.safetensors", "state/optimizer.safetensors", "state/rng.safetensors")
    assert [name for name in files if (one / name).read_bytes() != (other / name).read_bytes()] == []
    left, right = load_checkpoint(one / "final").tensors, load_checkpoint(other / "final").tensors
    assert all(np.array_equal(left[name], right[name]) for name in right)


# -- files by place ----------------------------------------------------------------------------------------------


def test_files_have_other_names_from_elsewhere(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final = train(recipe(corpus), tmp_path / "run")
    before = final.stat().st_ino
    monkeypatch.chdir(tmp_path)
    names = [Path(path).name for path in corpus.split()]
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "elsewhere").mkdir()
    for spelled in ("{}", "./{}", "elsewhere/../{}", "link/{}"):
        train(recipe(" ".join(map(spelled.format, names))), Path("run"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    train(recipe(" ".join(f"../{name}" for name in names)), Path("../run"))
    assert final.stat().st_ino == before, "the run was finished"
    shutil.copytree(tmp_path, tmp_path / "elsewhere" / "moved", ignore=lambda *_: ["elsewhere", "link"])
    train(recipe(" ".join(f"moved/{name}" for name in names)), Path("moved/run"))
    other = write_pair(tmp_path / "other", SENTENCES * 4)
    with pytest.raises(InvalidRequestError, match=r"\(data\.train: .* there, .*other.* here; data\.dev: "):
        train(recipe(other), tmp_path / "run")


@pytest.mark.parametrize("name", ["data.train", "data.dev", "model.start_from", "distill.teacher", "tokenizer.model"])
def test_every_field_that_names_files_is_compared_by_place(name: str) -> None:
    def differ(before: Any, now: Any, folders: tuple[str, str] = ("/a", "/a/b"), out: str = "/a/run") -> bool:
        section, _, key = name.partition(".")
        then, here = ([folder, out] for folder in folders)
        return bool(differences({section: {key: before}, "where": then}, {section: {key: now}, "where": here}))

    assert not differ("t.en", "../t.en")
    assert not differ("t.en", "/a/t.en")
    assert not differ(None, None)
    assert differ("t.en", None)
    assert differ("t.en", "t.en")
    assert differ("t.en", "t.de", ("/a", "/a"))
    if name.startswith("data"):
        assert not differ("hub:x/y", "hub:x/y")
        assert differ("hub:x/y", "hub:x/z")
        assert not differ("'my data/t.en' t.de", "'../my data/t.en' /a/t.de")
        assert differ("t.en t.de", "../t.de ../t.en")
        assert not differ(["t.tsv", "u.tsv"], ["../t.tsv", "/a/u.tsv"])
        assert differ(["t.tsv", "u.tsv"], ["../t.tsv ../u.tsv"])
    else:
        assert not differ("my model", "/a/my model")


def test_a_pruning_run_knows_its_teacher_by_place(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    tiny_checkpoint_at(tmp_path / "t")
    settings = PruneSettings(
        close_steps=10, recover_steps=1, batch_tokens=512, run=RunSection(device="cpu", eval_sentences=1)
    )

    def run(teacher: str) -> None:
        taught = {"distill": {"weight": 0.5, "teacher": teacher}}
        asked = PruneSettings.model_validate(settings.model_dump() | taught)
        PruningRun(PruneRequest(tmp_path / "c", [9], [corpus], corpus, tmp_path / "p", asked)).run()

    run(str(tmp_path / "t"))
    monkeypatch.chdir(tmp_path)
    run("./t")
    with pytest.raises(
        InvalidRequestError, match=r"other settings \(distill\.teacher: \./t there, \./c here\); give the"
    ):
        run("./c")


# -- what differs ------------------------------------------------------------------------------------------------


def test_what_differs_is_named_with_both_values(corpus: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(recipe(corpus), out)
    asked = recipe(corpus, train={"seed": 9, "headmask": "random:1"}, tokenizer={"vocab_size": 110})
    with pytest.raises(InvalidRequestError) as refused:
        train(asked, out)
    assert str(refused.value) == (
        f"{out} holds a run of another recipe (tokenizer.vocab_size: 120 there, 110 here; train.headmask: "
        f"not set there, random:1 here; train.seed: 1 there, 9 here); give the same, choose "
        f"another folder, or delete {out}"
    )


def test_a_run_of_an_earlier_version_is_the_same_run(tmp_path: Path) -> None:
    """An earlier version wrote recipe.json with fewer settings, and without the folder that paths are relative to."""
    now = recipe("a b", run={"log_every": 3})
    stored = now.model_dump(mode="json", exclude={"run"})

    def check(stored: dict[str, Any], asked: Recipe) -> None:
        check_same_run(json.dumps(stored), asked, tmp_path)

    check(stored, now)
    for later in ("layout", "start_from"):
        del stored["model"][later]
    del stored["train"]["headmask"]
    check(stored, now)
    check(stored, recipe("a b", run={"devices": 2}))
    for different in ({"headmask": "random:3"}, {"seed": 2}):
        with pytest.raises(InvalidRequestError, match=r"another recipe \(train\."):
            check(stored, recipe("a b", train=different))
    for damaged in (json.dumps(stored | {"more": 1}), "{", "[]"):
        with pytest.raises(InvalidRequestError, match="or of another version of HMC"):
            check_same_run(damaged, now, tmp_path)


# -- another length ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("run", [{}, {"keep_checkpoints": 1}, {"eval_every": "epoch"}])
def test_a_longer_run_equals_one_of_that_length_from_the_start(
    corpus: str, tmp_path: Path, run: dict[str, Any]
) -> None:
    """Update 6 is evaluated only because it is the last one, which it is not in the longer run."""
    longer = recipe(corpus, train={"steps": 13}, run=run)
    train(longer, tmp_path / "whole")
    train(recipe(corpus, run=run), tmp_path / "run")
    first = (tmp_path / "run" / "final" / "model.safetensors").read_bytes()
    with interrupted(5):
        train(longer, tmp_path / "run")
    assert (tmp_path / "run" / "final" / "model.safetensors").read_bytes() == first, (
        "it stays until the new one is there"
    )
    train(longer, tmp_path / "run")
    assert_equal(tmp_path / "run", tmp_path / "whole")
    there, expected = (sorted(p.name for p in (tmp_path / n / "checkpoints").iterdir()) for n in ("run", "whole"))
    assert there == expected
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["train"]["steps"] == 13
    assert load_checkpoint(tmp_path / "run" / "final").config.provenance["recipe"]["train"]["steps"] == 13


def test_a_longer_run_that_was_stopped_before_its_end_does_not_take_the_former_result(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(recipe(corpus), tmp_path / "run")
    longer = recipe(corpus, train={"steps": 8})
    with monkeypatch.context() as patched:
        patched.setattr("hmc.training.trainer.trainer.TrainingRun._finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(longer, tmp_path / "run")
    final = load_checkpoint(train(longer, tmp_path / "run"))
    assert final.config.provenance["recipe"]["train"]["steps"] == 8


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_run_is_made_shorter_down_to_what_is_done(corpus: str, tmp_path: Path) -> None:
    with interrupted(4):
        train(recipe(corpus, train={"steps": 9}, run={"save_every": 1}), tmp_path / "run")
    with pytest.raises(
        InvalidRequestError, match=r"train\.steps 3: the run in .* has made 3 updates of 9; give more than 3"
    ):
        train(recipe(corpus, train={"steps": 3}), tmp_path / "run")
    train(recipe(corpus, train={"steps": 5}, run={"save_every": 1}), tmp_path / "run")
    train(recipe(corpus, train={"steps": 5}, run={"save_every": 1}), tmp_path / "whole")
    assert_equal(tmp_path / "run", tmp_path / "whole")


def test_a_cooldown_that_has_begun_fixes_the_length(corpus: str, tmp_path: Path) -> None:
    """With six updates, of which the last three cool down, the rate of update 4 is the first that is whole, and that of
    update 5 is lower."""

    def cooling(steps: int) -> Recipe:
        return recipe(corpus, train={"steps": steps, "cooldown_steps": 3}, run={"save_every": 1})

    with interrupted(5):
        train(cooling(6), tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "later")
    train(cooling(9), tmp_path / "run")
    train(cooling(9), tmp_path / "whole")
    assert_equal(tmp_path / "run", tmp_path / "whole")
    with interrupted(2):
        train(cooling(6), tmp_path / "later")
    with pytest.raises(InvalidRequestError, match=r"rates after update 4 depend on train\.steps; give train\.steps=6"):
        train(cooling(9), tmp_path / "later")
    train(cooling(6), tmp_path / "later")

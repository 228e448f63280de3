"""Recipes: errors list every problem and suggest the nearest key; overrides have types."""

import re
from pathlib import Path

import pytest

from hmc.artifact import InvalidRequestError
from hmc.training import load_recipe

MINIMAL = '[data]\ntrain = ["a.en a.de"]\ndev = "b.en b.de"\n'


def recipe(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "r.toml"
    path.write_text(text)
    return path


def test_defaults_are_the_papers(tmp_path: Path) -> None:
    train = load_recipe(recipe(tmp_path, MINIMAL)).train
    assert (train.warmup_steps, train.label_smoothing, train.adam_betas, train.adam_epsilon) == (
        4000,
        0.1,
        (0.9, 0.98),
        1e-9,
    )


def test_overrides(tmp_path: Path) -> None:
    path = recipe(tmp_path, MINIMAL)
    changed = load_recipe(
        path, ["train.steps=7", "run.precision=bf16-mixed", "model.activation='gelu'", "train.dropout=0.3"]
    )
    assert (changed.train.steps, changed.run.precision, changed.model.activation, changed.train.dropout) == (
        7,
        "bf16-mixed",
        "gelu",
        0.3,
    )


def test_every_problem_is_listed_with_the_nearest_key(tmp_path: Path) -> None:
    path = recipe(tmp_path, MINIMAL + "[train]\nlearning_rat = 1\ndropout = 2.0\n[modell]\nheads = 8\n")
    with pytest.raises(InvalidRequestError) as caught:
        load_recipe(path)
    text = str(caught.value)
    assert "did you mean train.learning_rate?" in text
    assert "train.dropout: Input should be less than 1" in text
    assert "modell: unknown key; did you mean model?" in text


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("steps=3", "section.key=value"),
        ("train.stepz=3", "did you mean train.steps"),
        ("data.train=a.en a.de", re.escape('data.train: write a list, even of one element: ["a.en a.de"]')),
    ],
)
def test_bad_overrides(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        load_recipe(recipe(tmp_path, MINIMAL), [override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.learning_rate=inf", "train.learning_rate: Input should be a finite number"),
        ("train.learning_rate=nan", "train.learning_rate: Input should be a finite number"),
        ("train.clip_norm=inf", "train.clip_norm: Input should be a finite number"),
        ("train.adam_betas=[1.5, 0.98]", "train.adam_betas.0: Input should be less than 1"),
        ("train.adam_betas=[0.9, 1.0]", "train.adam_betas.1: Input should be less than 1"),
        ("train.adam_betas=[-0.1, 0.98]", "train.adam_betas.0: Input should be greater than or equal to 0"),
        ("train.seed=-1", "train.seed: Input should be greater than or equal to 0"),
        ("train.seed=4294967296", "train.seed: Input should be less than or equal to 4294967295"),
    ],
)
def test_numbers_that_training_cannot_use(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        load_recipe(recipe(tmp_path, MINIMAL), [override])
    assert message in str(caught.value)


def test_an_override_of_a_section_that_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"the recipe has `train = …`, but train is a table; write a line \[train\]"
    ):
        load_recipe(recipe(tmp_path, "train = 5\n" + MINIMAL), ["train.steps=3"])


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="does not exist"):
        load_recipe(tmp_path / "none.toml")
    with pytest.raises(InvalidRequestError, match="not TOML"):
        load_recipe(recipe(tmp_path, "[data"))


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[3].glob("recipes/*.toml")), ids=lambda p: p.stem)
def test_shipped_recipes_are_valid(path: Path) -> None:
    load_recipe(path)


@pytest.mark.parametrize("override", ["train.steps=true", "train.weight_decay=true", "data.dev=false"])
def test_truth_values_are_no_numbers(tmp_path: Path, override: str) -> None:
    name, _, value = override.partition("=")
    with pytest.raises(InvalidRequestError, match=f"{name}: Value error, {value} is neither a number nor a text"):
        load_recipe(recipe(tmp_path, MINIMAL), [override])


def test_a_byte_order_mark_is_no_part_of_a_recipe(tmp_path: Path) -> None:
    path = recipe(tmp_path, MINIMAL)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_recipe(path).data.dev == "b.en b.de"

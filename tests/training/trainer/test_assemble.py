"""The parts of a recipe: its tokenizer, and the checkpoint that it starts from."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from tests.tiny import tiny_checkpoint_at

from hmc.artifact import InvalidArtifactError, InvalidRequestError, load_checkpoint, save_checkpoint
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.heads import HeadLayout
from hmc.artifact.tokenizer.files import TOKENIZER, read_tokenizer
from hmc.training import Recipe, export_tensors
from hmc.training.runs.recipe import RunSection, TrainSection
from hmc.training.trainer.assemble import check_parts, check_schedule, make_model, make_vocabulary, settled


def recipe(model: Path) -> Recipe:
    data = {"train": ["a b"], "dev": "a b"}
    return Recipe.model_validate({"data": data, "tokenizer": {"model": str(model)}})


@pytest.mark.parametrize("name", ["", TOKENIZER])
def test_the_tokenizer_of_a_checkpoint(name: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    vocabulary = make_vocabulary(recipe(tiny_checkpoint / name), tmp_path)
    assert len(vocabulary) == 120
    assert read_tokenizer(tmp_path) == load_checkpoint(tiny_checkpoint).tokenizer


def test_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"tokenizer\.model .*/none: cannot be read"):
        make_vocabulary(recipe(tmp_path / "none"), tmp_path)
    with pytest.raises(InvalidArtifactError, match=r"tokenizer\.model is missing"):
        make_vocabulary(recipe(tmp_path), tmp_path)


def deeper(checkpoint: Path, **changes: int) -> tuple[Recipe, Architecture]:
    """A recipe that starts from `checkpoint`, and its architecture with other sizes."""
    arch = load_checkpoint(checkpoint).architecture.model_copy(update=changes)
    data, model = {"train": ["a b"], "dev": "a b"}, {"start_from": str(checkpoint)}
    return Recipe.model_validate({"data": data, "model": model}), arch


def test_a_deep_model_starts_from_a_shallow_one(tiny_checkpoint: Path) -> None:
    recipe, arch = deeper(tiny_checkpoint, encoder_layers=4, decoder_layers=6)
    own = load_checkpoint(tiny_checkpoint).tensors
    deep = export_tensors(make_model(recipe, arch, arch.full_layout()))
    origins = {"encoder": [0, 0, 1, 1], "decoder": [0, 0, 0, 1, 1, 1]}
    for stack, numbers in origins.items():
        for layer, origin in enumerate(numbers):
            for part in ("self_attn.k_proj.weight", "self_attn.out_proj.bias", "fc2.weight", "final_layer_norm.bias"):
                wanted = own[f"{stack}.layers.{origin}.{part}"]
                assert np.array_equal(deep[f"{stack}.layers.{layer}.{part}"], wanted)
    assert np.array_equal(deep["shared.weight"], own["shared.weight"])


def test_layers_that_are_no_multiple_are_refused(tiny_checkpoint: Path) -> None:
    recipe, arch = deeper(tiny_checkpoint, decoder_layers=3)
    with pytest.raises(InvalidRequestError, match=r"recipe's 2 and 3 are no multiples"):
        make_model(recipe, arch, arch.full_layout())


def test_other_widths_are_refused(tiny_checkpoint: Path) -> None:
    recipe, arch = deeper(tiny_checkpoint, encoder_layers=4, ffn_dim=8)
    with pytest.raises(InvalidRequestError, match=r"is not the model of the recipe: ffn_dim 48 there, 8 here\. Leave"):
        make_model(recipe, arch, arch.full_layout())


def started(checkpoint: Path, **sections: dict[str, object]) -> Recipe:
    data = {"train": ["a b"], "dev": "a b"} | sections.pop("data", {})
    model = {"start_from": str(checkpoint)} | sections.pop("model", {})
    return Recipe.model_validate({"data": data, "model": model, **sections})


def test_languages_and_sizes_of_the_start_come_before_defaults(tiny_checkpoint: Path, tmp_path: Path) -> None:
    source = load_checkpoint(tiny_checkpoint)
    config = source.config.model_copy(update={"source_language": "fr", "target_language": "en"})
    save_checkpoint(replace(source, config=config), tmp_path / "french")
    found = settled(started(tmp_path / "french", model={"encoder_layers": 4}))
    assert (found.data.source_language, found.data.target_language) == ("fr", "en")
    assert (found.model.d_model, found.model.encoder_layers) == (source.architecture.d_model, 4)
    named = settled(started(tmp_path / "french", data={"target_language": "de"}))
    assert (named.data.source_language, named.data.target_language) == ("fr", "de")
    assert settled(found) == found


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"tokenizer": {"model": "/nonexisting"}}, "brings its own tokenizer: leave tokenizer.model /nonexisting out"),
        (
            {"tokenizer": {"vocab_size": 9000}},
            "of model.start_from has 120 tokens.*leave tokenizer.vocab",
        ),
        ({"tokenizer": {"bpe_dropout_copies": 4}}, "bpe_dropout_copies belongs to tokenizer.bpe_dropout"),
        ({"model": {"start_from": None}, "tokenizer": {"model": "TINY", "vocab_size": 9}}, "greater than or equal"),
        (
            {"model": {"start_from": None}, "tokenizer": {"model": "TINY", "vocab_size": 99}},
            "of tokenizer.model has 120",
        ),
        ({"distill": {"temperature": 2.0}}, "no distribution is learned from a teacher"),
        ({"distill": {"temperature": 2.0, "hidden": 1.0}}, "no distribution is learned from a teacher"),
    ],
)
def test_one_thing_from_two_sources(
    sections: dict[str, dict[str, object]], message: str, tiny_checkpoint: Path
) -> None:
    given = {n: {k: str(tiny_checkpoint) if v == "TINY" else v for k, v in s.items()} for n, s in sections.items()}
    with pytest.raises((InvalidRequestError, ValidationError), match=message):
        check_parts(settled(started(tiny_checkpoint, **given)), begins=True)


def test_what_says_the_same_thing_twice_is_taken(tiny_checkpoint: Path) -> None:
    twice = settled(started(tiny_checkpoint, tokenizer={"model": str(tiny_checkpoint), "vocab_size": 120}))
    check_parts(twice, begins=True)


def test_a_start_with_fewer_heads_says_how_to_keep_them(tiny_checkpoint: Path, tmp_path: Path) -> None:
    source = load_checkpoint(tiny_checkpoint)
    layout = HeadLayout(encoder_self=((0,), (1, 2)), decoder_self=((0, 1),) * 2, cross=((3,),) * 2)
    tiny_checkpoint_at(tmp_path / "few", layout=layout)
    arch, full = source.architecture, source.architecture.full_layout()
    with pytest.raises(InvalidRequestError) as told:
        make_model(started(tmp_path / "few"), arch, full)
    assert str(told.value).endswith(
        f"other heads than the recipe: 9 open there, 24 here; set model.layout={tmp_path}/few"
    )
    make_model(started(tmp_path / "few"), arch, layout)
    deep = arch.model_copy(update={"encoder_layers": 4})
    with pytest.raises(InvalidRequestError, match="layers are only repeated where every head is open"):
        make_model(started(tmp_path / "few"), deep, deep.full_layout())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"steps": 100}, ["steps 100 end before the warm-up does", "reaches 0.025 of train.learning_rate"]),
        (
            {"steps": 6000, "cooldown_steps": 5000},
            ["cooldown_steps 5,000 of train.steps 6,000 begin before"],
        ),
        ({"steps": 100, "cooldown_steps": 5000}, ["end before the warm-up", "begin before the warm-up ends"]),
        ({"steps": 5000, "headmask": "random:2,after=5000"}, ["masks nothing: after=5,000"]),
        ({"steps": 5000, "warmup_steps": 500, "cooldown_steps": 4500, "headmask": "random:2,after=10"}, []),
        ({"patience": 3, "cooldown_steps": 500}, ["train.patience 3 may end the run before its cool-down"]),
        ({"patience": 12, "steps": 10_000}, ["train.patience 12 ends nothing", "after update 10,000, and"]),
        ({"patience": 11, "steps": 10_000}, []),
        ({"patience": 3, "steps": 2000, "warmup_steps": 1}, ["ends nothing", "after update 2,000, and"]),
        ({"patience": 2, "steps": 2000, "warmup_steps": 1}, []),
        ({}, []),
    ],
)
def test_steps_that_contradict_each_other(given: dict[str, object], words: list[str]) -> None:
    told = "; ".join(check_schedule(TrainSection.model_validate(given), RunSection()))
    assert [word for word in words if word not in told] == []
    assert bool(told) == bool(words)

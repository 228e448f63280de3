"""The parts of a recipe: its tokenizer, and the checkpoint that it starts from."""

from pathlib import Path

import numpy as np
import pytest

from hmc.artifact import InvalidArtifactError, InvalidRequestError, load_checkpoint
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.tokenizer.files import TOKENIZER, read_tokenizer
from hmc.training import Recipe, export_tensors
from hmc.training.trainer.assemble import make_model, make_vocabulary


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
    with pytest.raises(InvalidRequestError, match="has other widths or heads than the recipe"):
        make_model(recipe, arch, arch.full_layout())

"""The tokenizer of a recipe: that of a checkpoint, or a SentencePiece model."""

from pathlib import Path

import pytest

from hmc.artifact.checkpoint.checkpoint import load_checkpoint
from hmc.artifact.errors import InvalidArtifactError, InvalidRequestError
from hmc.artifact.tokenizer.files import TOKENIZER, read_tokenizer
from hmc.training.runs.recipe import Recipe
from hmc.training.trainer.assemble import make_vocabulary


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

"""Training a model whose sides have vocabularies of their own."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from tests.artifact.marian.opus import GERMAN
from tests.artifact.marian.two_vocabularies import two_vocabularies
from tests.support.files import write_pair
from tests.tiny import SENTENCES

from hmc.artifact import Checkpoint, InvalidArtifactError, load_checkpoint, save_checkpoint
from hmc.artifact.marian.reader import import_marian
from hmc.artifact.model.architecture import SOURCE_EMBEDDING, TARGET_EMBEDDING
from hmc.training import (
    PruneRequest,
    PruneSettings,
    PruningRun,
    Recipe,
    Vocabulary,
    export_tensors,
    model_from_checkpoint,
    nested_finetune,
    train,
)
from hmc.training.analysis.roles.rare_words import token_counts
from hmc.training.runs.recipe import RunSection


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint `c` and a corpus."""
    two_vocabularies(tmp_path / "opus")
    save_checkpoint(import_marian(tmp_path / "opus"), tmp_path / "c")
    write_pair(tmp_path, SENTENCES[:8] * 2, GERMAN * 2)
    return tmp_path


def test_weights_come_back_as_they_went_in(folder: Path) -> None:
    checkpoint = load_checkpoint(folder / "c")
    tensors = export_tensors(model_from_checkpoint(checkpoint))
    assert tensors.keys() == checkpoint.tensors.keys()
    assert all(np.array_equal(tensors[name], checkpoint.tensors[name]) for name in tensors)


def test_each_side_learns_its_own_rows_but_never_pad_s(folder: Path) -> None:
    checkpoint = load_checkpoint(folder / "c")
    model, pad = model_from_checkpoint(checkpoint), checkpoint.architecture.pad_id
    assert model.sources is not None
    states = model(torch.tensor([[7, 8, 0], [9, 0, pad]]), torch.tensor([[pad, 20], [pad, 21]]))
    model.logits(states).square().sum().backward()
    source, target = model.sources.weight.grad, model.shared.weight.grad
    assert source is not None
    assert target is not None
    assert torch.flatten(source.abs().sum(1).nonzero()).tolist() == [0, 7, 8, 9]
    assert (target.abs().sum(1) > 0).sum() == checkpoint.architecture.vocab_size - 1  # all are in the output layer
    assert not target[pad].any()


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_heads_go_and_frozen_stacks_keep_their_embeddings(folder: Path, stack: Literal["encoder", "decoder"]) -> None:
    source, pruned = load_checkpoint(folder / "c"), prune(folder, stack)
    assert pruned.layout.total == {"encoder": 8 + 4, "decoder": 4 + 16}[stack]
    assert pruned.architecture == source.architecture
    assert pruned.tokenizer == source.tokenizer
    kept, learnt = (SOURCE_EMBEDDING, TARGET_EMBEDDING)[:: 1 if stack == "encoder" else -1]
    assert np.array_equal(pruned.tensors[kept], source.tensors[kept])
    assert not np.array_equal(pruned.tensors[learnt], source.tensors[learnt])


def prune(folder: Path, stack: Literal["encoder", "decoder"]) -> Checkpoint:
    settings = PruneSettings(
        close_steps=10,
        recover_steps=1,
        batch_tokens=512,
        freeze=stack,
        scope=("encoder_self",) if stack == "decoder" else ("decoder_self", "cross"),
        run=RunSection(device="cpu", eval_sentences=1, log_every=10),
    )
    corpus = f"{folder}/t.en {folder}/t.de"
    [path] = PruningRun(PruneRequest(folder / "c", [4], [corpus], corpus, folder / "p", settings)).run()
    return load_checkpoint(path)


def test_nested_fine_tuning_keeps_what_is_frozen(folder: Path) -> None:
    pruned = prune(folder, "encoder")
    save_checkpoint(pruned, folder / "pruned")
    settings = PruneSettings(batch_tokens=512, freeze="encoder", run=RunSection(device="cpu", eval_sentences=1))
    corpus = f"{folder}/t.en {folder}/t.de"
    path = nested_finetune(
        PruneRequest(folder / "c", (), [corpus], corpus, folder / "nested", settings, nested_steps=2),
        [folder / "pruned"],
    )
    nested, source = load_checkpoint(path), load_checkpoint(folder / "c")
    changed = {name for name, value in nested.tensors.items() if not np.array_equal(value, source.tensors[name])}
    assert TARGET_EMBEDDING in changed
    assert not [name for name in changed if name.startswith("encoder.")]


def test_a_tokenizer_that_lost_a_file_is_not_trained_with(folder: Path) -> None:
    (folder / "c" / "target_vocab.json").unlink()
    corpus = f"{folder}/t.en {folder}/t.de"
    recipe = Recipe.model_validate({"data": {"train": [corpus], "dev": corpus}, "tokenizer": {"model": f"{folder}/c"}})
    with pytest.raises(InvalidArtifactError, match=r"target_vocab\.json is missing"):
        train(recipe, folder / "run")


def test_rare_words_are_counted_among_source_tokens(folder: Path) -> None:
    checkpoint = load_checkpoint(folder / "c")
    counts = token_counts(str(folder / "t.en"), Vocabulary(checkpoint.tokenizer), ("en", "de"))
    assert len(counts) == checkpoint.architecture.source_vocab_size == 113
    assert counts[101:].any(), "no token of the text tells the two vocabularies apart"


def test_a_recipe_continues_it(folder: Path) -> None:
    corpus = f"{folder}/t.en {folder}/t.de"
    model = {"d_model": 64, "ffn_dim": 48, "encoder_layers": 2, "decoder_layers": 2, "heads": 4, "max_positions": 96}
    recipe = Recipe.model_validate(
        {
            "data": {"train": [corpus], "dev": corpus, "max_length": 96},
            "tokenizer": {"model": str(folder / "c")},
            "model": model | {"start_from": str(folder / "c")},
            "train": {"steps": 2, "batch_tokens": 512, "warmup_steps": 1},
            "run": {"device": "cpu", "eval_sentences": 1},
        }
    )
    train(recipe, folder / "run")
    trained, source = load_checkpoint(folder / "run" / "final"), load_checkpoint(folder / "c")
    assert trained.architecture == source.architecture
    assert trained.tokenizer == source.tokenizer
    assert not np.array_equal(trained.tensors[SOURCE_EMBEDDING], source.tensors[SOURCE_EMBEDDING])

"""MarianMT models with two vocabularies: import, export, and the same scores as in Transformers."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tests.artifact.marian.opus import GERMAN, edit
from tests.artifact.marian.two_vocabularies import separated, two_vocabularies, write_two
from tests.manifests import changed_manifest
from tests.tiny import SENTENCES

from hmc.artifact import (
    InvalidArtifactError,
    bundle_problems,
    checkpoint_problems,
    load_checkpoint,
    save_checkpoint,
    validate,
)
from hmc.artifact.marian.reader import import_marian
from hmc.artifact.marian.writer import export_marian
from hmc.artifact.tokenizer.files import MarianFiles
from hmc.artifact.tokenizer.tokenizer import open_tokenizer
from hmc.compiler import LevelRequest, compile_bundle
from hmc.serving import DecodeOptions, Translator
from hmc.training import model_from_checkpoint

LIMIT = 24


@pytest.fixture(params=[False, True], ids=["pad early, sizes differ", "pad last, sizes equal"])
def marian(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    two_vocabularies(tmp_path / "opus", pad_last=request.param)
    return tmp_path / "opus"


def test_each_side_has_its_own_ids(marian: Path) -> None:
    checkpoint = import_marian(marian)
    tokenizer = open_tokenizer(checkpoint.tokenizer)
    source, target = (json.loads((marian / name).read_text()) for name in ("vocab.json", "target_vocab.json"))
    assert (tokenizer.source_size, tokenizer.size) == (len(source), len(target))
    ids = tokenizer.encode(f">>deu<< {SENTENCES[0]}")
    assert ids[0] == source[">>deu<<"]
    assert [tokenizer.source_piece(i) for i in ids[1:]] == list(map(_piece_of(source), ids[1:]))
    written = tokenizer.encode(GERMAN[0], target=True)
    assert [tokenizer.piece(i) for i in written] == list(map(_piece_of(target), written))
    assert tokenizer.decode([*written, tokenizer.eos_id]) == GERMAN[0]
    only_target = next(p for p in target if p not in source)
    assert tokenizer.find(only_target) == target[only_target]
    assert tokenizer.find(">>deu<<") is None


def _piece_of(vocabulary: dict[str, int]) -> Callable[[int], str]:
    names = {i: piece for piece, i in vocabulary.items()}
    return lambda token: names[token]


def test_it_goes_out_as_it_came_in(marian: Path, tmp_path: Path) -> None:
    checkpoint = import_marian(marian)
    export_marian(checkpoint, tmp_path / "again")
    back = import_marian(tmp_path / "again")
    assert back.architecture == checkpoint.architecture
    assert back.tokenizer == checkpoint.tokenizer
    assert all(np.array_equal(back.tensors[name], value) for name, value in checkpoint.tensors.items())


def test_transformers_translates_alike(marian: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    save_checkpoint(import_marian(marian), tmp_path / "c")
    export_marian(load_checkpoint(tmp_path / "c"), tmp_path / "again")
    tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path / "again")
    model = transformers.MarianMTModel.from_pretrained(tmp_path / "again").eval()
    batch = tokenizer(SENTENCES, return_tensors="pt", padding=True)
    compile_bundle([LevelRequest(tmp_path / "c")], tmp_path / "b")
    for beam in (1, 4):
        written = model.generate(**batch, num_beams=beam, max_length=LIMIT + 1, forced_eos_token_id=None)
        with Translator(tmp_path / "b", device="cpu", threads=1) as translator:
            ours = translator.translate(SENTENCES, DecodeOptions(beam_size=beam, max_length=LIMIT), segmentation="none")
        assert [t.text for t in ours] == tokenizer.batch_decode(written, skip_special_tokens=True)


def test_the_training_model_computes_what_transformers_does(marian: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    checkpoint = import_marian(marian)
    arch, tokenizer = checkpoint.architecture, open_tokenizer(checkpoint.tokenizer)
    source = torch.tensor([[*tokenizer.encode(SENTENCES[1]), arch.eos_id]])
    target = torch.tensor([[arch.pad_id, *tokenizer.encode(GERMAN[1], target=True)]])
    model = model_from_checkpoint(checkpoint).eval()
    theirs = transformers.MarianMTModel.from_pretrained(marian).eval()
    with torch.no_grad():
        ours = model.logits(model(source, target))
        expected = theirs(input_ids=source, decoder_input_ids=target).logits
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


def test_one_vocabulary_under_two_embeddings_is_both(marian: Path) -> None:
    """Transformers also allows two embeddings with a joint tokenizer."""
    source = json.loads((marian / "vocab.json").read_text())
    (marian / "target_vocab.json").unlink()
    edit(marian / "tokenizer_config.json", separate_vocabs=False)
    edit(marian / "config.json", decoder_vocab_size=len(source))
    tensors = dict(import_as(marian, len(source)))
    write_two(marian, tensors)
    checkpoint = import_marian(marian)
    assert isinstance(checkpoint.tokenizer, MarianFiles)
    assert checkpoint.tokenizer.target_vocabulary == checkpoint.tokenizer.vocabulary
    assert checkpoint.architecture.source_vocab_size == checkpoint.architecture.vocab_size == len(source)


def import_as(marian: Path, size: int) -> dict[str, np.ndarray]:
    """Random weights for two vocabularies of `size`."""
    from tests.tiny import random_tensors, tiny_architecture

    pad = json.loads((marian / "config.json").read_text())["pad_token_id"]
    arch = tiny_architecture(vocab_size=size, source_vocab_size=size, pad_id=pad, d_model=64)
    return random_tensors(arch, arch.full_layout())


PROBLEMS: list[tuple[Callable[[Path], object], str]] = [
    (lambda m: (m / "target_vocab.json").unlink(), r"target_vocab\.json is missing"),
    (lambda m: edit(m / "target_vocab.json", **{"▁extra": 101}), r"target_vocab\.json has 102 entries, .* has 101"),
    (lambda m: edit(m / "vocab.json", **{"<pad>": 0, "</s>": 2}), r"vocab\.json gives '</s>' the id 2, .*eos_id is 0"),
    (lambda m: (m / "target_vocab.json").write_text("{"), r"target_vocab\.json is not JSON"),
    (lambda m: edit(m / "config.json", share_encoder_decoder_embeddings=True), "decoder_vocab_size 101 must be equal"),
    (
        lambda m: edit(m / "config.json", share_encoder_decoder_embeddings=None, decoder_vocab_size=None),
        r"separate_vocabs is true, and config\.json has one embedding",
    ),
    (lambda m: edit(m / "config.json", vocab_size=90), r"encoder\.embed_tokens\.weight has shape \[113, 64\]"),
    (
        lambda m: edit(m / "config.json", pad_token_id=105, decoder_start_token_id=105),
        "pad_id 105 is outside the vocabulary of 101: it has to be the same token in both",
    ),
    (lambda m: edit(m / "tokenizer_config.json", separate_vocabs=False), "is false, and there is a target_vocab"),
    (lambda m: edit(m / "config.json", decoder_vocab_size=-4), r"config\.json: decoder_vocab_size: Input should be"),
    (lambda m: edit(m / "config.json", vocab_size=-4), r"config\.json: vocab_size: Input should be"),
    (lambda m: _without(m, "model.decoder.embed_tokens.weight"), r"decoder\.embed_tokens\.weight is missing"),
    (lambda m: _add(m, "lm_head.weight", (101, 64)), "differ: only an output tied to its embedding is supported"),
]


def _without(marian: Path, tensor: str) -> None:
    tensors = load_file(marian / "model.safetensors")
    del tensors[tensor]
    save_file(tensors, marian / "model.safetensors")


def _add(marian: Path, tensor: str, shape: tuple[int, ...]) -> None:
    tensors = load_file(marian / "model.safetensors") | {tensor: np.ones(shape, np.float32)}
    save_file(tensors, marian / "model.safetensors")


@pytest.mark.parametrize(("damage", "problem"), PROBLEMS, ids=[p for _, p in PROBLEMS])
def test_what_does_not_fit_is_refused(tmp_path: Path, damage: Callable[[Path], object], problem: str) -> None:
    two_vocabularies(tmp_path / "opus")
    damage(tmp_path / "opus")
    with pytest.raises(InvalidArtifactError, match=problem):
        import_marian(tmp_path / "opus")


def test_every_problem_is_told_once_and_no_other(tmp_path: Path) -> None:
    two_vocabularies(tmp_path / "opus")
    (tmp_path / "opus" / "vocab.json").write_text("{")
    (tmp_path / "opus" / "config.json").write_text("{")
    edit(tmp_path / "opus" / "target_vocab.json", **{"<unk>": None})
    with pytest.raises(InvalidArtifactError) as caught:
        import_marian(tmp_path / "opus")
    named = [problem.split(" ")[0].rstrip(":") for problem in caught.value.problems]
    assert named == ["config.json", "vocab.json", "target_vocab.json", "target_vocab.json"]
    two_vocabularies(tmp_path / "again")
    (tmp_path / "again" / "vocab.json").write_text("{")
    with pytest.raises(InvalidArtifactError) as caught:
        import_marian(tmp_path / "again")
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("said", [True, None])
def test_the_target_vocabulary_that_is_there_is_used(marian: Path, said: bool | None) -> None:
    expected = import_marian(marian).tokenizer
    edit(marian / "tokenizer_config.json", separate_vocabs=said)
    assert import_marian(marian).tokenizer == expected


def test_special_pieces_are_the_same_on_both_sides(marian: Path) -> None:
    files = import_marian(marian).tokenizer
    assert isinstance(files, MarianFiles)
    assert files.target_vocabulary
    swapped = json.loads(files.target_vocabulary)
    swapped["<unk>"], swapped["</s>"] = swapped["</s>"], swapped["<unk>"]
    with pytest.raises(InvalidArtifactError, match=r"'</s>' has the id 0 in vocab\.json and 1 in target_vocab\.json"):
        open_tokenizer(dataclasses.replace(files, target_vocabulary=json.dumps(swapped).encode()))


def test_a_checkpoint_without_its_target_vocabulary_is_not_whole(marian: Path, tmp_path: Path) -> None:
    save_checkpoint(import_marian(marian), tmp_path / "c")
    assert checkpoint_problems(tmp_path / "c") == []
    (tmp_path / "c" / "target_vocab.json").unlink()
    assert checkpoint_problems(tmp_path / "c") == [
        "target_vocab.json is missing: sources and targets have embeddings of their own"
    ]


def test_a_bundle_lists_its_target_vocabulary(marian: Path, tmp_path: Path) -> None:
    save_checkpoint(import_marian(marian), tmp_path / "c")
    compile_bundle([LevelRequest(tmp_path / "c")], tmp_path / "b")
    assert "target_vocab.json" in validate(tmp_path / "b").tokenizer_files
    with changed_manifest(tmp_path / "b") as manifest:
        del manifest["tokenizer_sha256"]["target_vocab.json"]
    assert "expected source.spm, target.spm, vocab.json, target_vocab.json" in "\n".join(
        bundle_problems(tmp_path / "b")
    )


def test_a_model_from_outside_translates_as_with_one_vocabulary(data: Path, tmp_path: Path) -> None:
    if not (data / "marian-en-de").is_dir():
        pytest.skip("HMC_DATA holds no marian-en-de")
    separated(data / "marian-en-de", tmp_path / "two")
    texts = ["Two dogs run across the grass.", "A man plays the guitar."]
    for name, folder in (("one", data / "marian-en-de"), ("two", tmp_path / "two")):
        save_checkpoint(import_marian(folder), tmp_path / f"c-{name}")
        compile_bundle([LevelRequest(tmp_path / f"c-{name}")], tmp_path / f"b-{name}")
    found = []
    for name in ("one", "two"):
        with Translator(tmp_path / f"b-{name}", device="cpu", threads=1) as translator:
            found.append([(t.text, t.score) for t in translator.translate(texts, segmentation="none")])
    assert [text for text, _ in found[0]] == [text for text, _ in found[1]]
    assert [score for _, score in found[0]] == pytest.approx([score for _, score in found[1]], abs=1e-4)

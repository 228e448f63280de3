"""What CTranslate2's own converters write becomes the checkpoint of the model that was converted, and translates
alike."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.artifact.ctranslate2.converted import convert, release_and_converted, rewrite
from tests.artifact.marian.opus import pieces_of
from tests.artifact.npz.marian_writer import write_release
from tests.support.files import write_lines
from tests.tiny import SENTENCES, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import Checkpoint, checkpoint_problems, save_checkpoint
from hmc.artifact.ctranslate2.reader import import_ctranslate2, is_ctranslate2
from hmc.artifact.marian.reader import import_marian
from hmc.artifact.marian.writer import export_marian
from hmc.artifact.npz.reader import import_release
from hmc.artifact.tokenizer.tokenizer import open_tokenizer

ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # what other libraries warn of is not ours to fix
FORMS: dict[str, dict[str, Any]] = {
    "opus": {},
    "norms first, own output": {"pre_norm": True, "stack_norms": True, "own_output": True},
    "two vocabularies": {"two": True},
}
LIMIT = 24


def imported(folder: Path) -> Checkpoint:
    return import_ctranslate2(folder, source_language="eng", target_language="mul")


def apart(one: Checkpoint, other: Checkpoint) -> dict[str, float]:
    """For each tensor that differs: by how much, as a share of the largest value of its row."""
    found = {}
    for name, value in other.tensors.items():
        largest = np.abs(value).max(axis=-1, keepdims=True) + 1e-30
        found[name] = float((np.abs(one.tensors[name] - value) / largest).max())
    return {name: distance for name, distance in found.items() if distance}


@pytest.mark.parametrize("form", FORMS)
def test_every_number_is_the_model_s(form: str, tmp_path: Path) -> None:
    release, converted = release_and_converted(tmp_path, **FORMS[form])
    found, expected = imported(converted), import_release(release)
    assert is_ctranslate2(converted)
    assert (found.architecture, found.tokenizer) == (expected.architecture, expected.tokenizer)
    assert apart(found, expected) == {}
    assert (found.config.source_language, found.config.target_language) == ("eng", "mul")
    assert found.config.provenance["weights"] == "float32"
    save_checkpoint(found, tmp_path / "c")
    assert checkpoint_problems(tmp_path / "c") == []


STEPS = {"float16": 2**-11, "bfloat16": 2**-8, "int16": None, "int8": 0.51 / 127, "int8_float16": 0.51 / 127 + 2**-11}
"""Type of the weights → the greatest error in shares of the largest value of a row: half a step. int16 has one scale
for a whole matrix, which may hold several of ours."""


@pytest.mark.parametrize("kind", STEPS)
def test_other_types_are_restored_to_half_a_step(kind: str, tmp_path: Path) -> None:
    release, converted = release_and_converted(tmp_path, kind)
    found, expected = imported(converted), import_release(release)
    step = STEPS[kind]
    distances = apart(found, expected)
    assert distances, "something is lost"
    if step is None:
        largest = max(np.abs(value).max() for name, value in expected.tensors.items() if name != "final_logits_bias")
        errors = [np.abs(found.tensors[name] - value).max() for name, value in expected.tensors.items()]
        assert max(errors) <= 0.51 / 2**10 * largest
    else:
        assert max(distances.values()) <= step
    assert found.config.provenance["weights"] == kind.partition("_")[0]
    assert np.array_equal(found.tensors["shared.weight"][found.architecture.pad_id], np.zeros(64))


def greedy_ids(folder: Path, checkpoint: Checkpoint, texts: list[str]) -> list[list[int]]:
    """Ids that CTranslate2 translates to, without EOS, as those of the checkpoint."""
    tokenizer = open_tokenizer(checkpoint.tokenizer)
    translator = ctranslate2.Translator(str(folder), device="cpu", inter_threads=1, intra_threads=1)
    ends = [] if json.loads((folder / "config.json").read_text())["add_source_eos"] else ["</s>"]
    sources = [[*(tokenizer.source_piece(i) for i in tokenizer.encode(text)), *ends] for text in texts]
    numbers = {tokenizer.piece(i): i for i in range(tokenizer.size)}
    results = translator.translate_batch(sources, beam_size=1, max_decoding_length=LIMIT)
    return [[numbers[piece] for piece in result.hypotheses[0]] for result in results]


def our_ids(checkpoint: Checkpoint, folder: Path, texts: list[str]) -> list[list[int]]:
    """Ids that HMC's engine translates to, without EOS."""
    from hmc.compiler import LevelRequest, compile_bundle
    from hmc.serving import DecodeOptions, Translator

    save_checkpoint(checkpoint, folder / "c")
    compile_bundle([LevelRequest(folder / "c")], folder / "b")
    tokenizer = open_tokenizer(checkpoint.tokenizer)
    options = DecodeOptions(beam_size=1, max_length=LIMIT, token_scores=True)
    with Translator(folder / "b", device="cpu", threads=1) as translator:
        found = [t.hypotheses[0] for t in translator.translate(texts, options, segmentation="none")]
    numbers = {tokenizer.piece(i): i for i in range(tokenizer.size)}
    return [[numbers[token.piece] for token in one.tokens if token.piece != "</s>"] for one in found]


@pytest.mark.parametrize("form", FORMS)
def test_ctranslate2_translates_alike(form: str, tmp_path: Path) -> None:
    _, converted = release_and_converted(tmp_path, **FORMS[form])
    found = imported(converted)
    expected = greedy_ids(converted, found, SENTENCES)
    assert our_ids(found, tmp_path / "ours", SENTENCES) == expected
    assert len({tuple(ids) for ids in expected}) > len(SENTENCES) // 2


def real_model() -> Path:
    folder = Path(os.environ.get("HMC_DATA", "")) / "marian-en-de"
    if not os.environ.get("HMC_DATA") or not folder.is_dir():
        pytest.skip("HMC_DATA does not name a folder with marian-en-de")
    return folder


@pytest.mark.slow
def test_a_trained_model_of_transformers(tmp_path: Path) -> None:
    """Its pad has an embedding, which CTranslate2's converter leaves out; all else is that of the model itself."""
    pytest.importorskip("transformers", reason="CTranslate2's converter needs transformers, which is not installed")
    model = real_model()
    copied = ["source.spm", "target.spm"]
    ctranslate2.converters.TransformersConverter(str(model), copy_files=copied).convert(str(tmp_path / "ct2"))
    found, expected = imported(tmp_path / "ct2"), import_marian(model)
    assert (found.architecture, found.tokenizer) == (expected.architecture, expected.tokenizer)
    pad = expected.architecture.pad_id
    for one in (found, expected):
        one.tensors["shared.weight"][pad], one.tensors["final_logits_bias"][pad] = 0, -1e4
    assert apart(found, expected) == {}
    assert our_ids(found, tmp_path / "ours", SENTENCES) == greedy_ids(tmp_path / "ct2", found, SENTENCES)


def test_a_decoder_whose_first_position_holds_pad(tmp_path: Path) -> None:
    """`hmc export` writes models so, because CTranslate2 starts decoders from zeros."""
    pytest.importorskip("transformers", reason="CTranslate2's converter needs transformers, which is not installed")
    checkpoint = tiny_checkpoint_at(tmp_path / "c", arch=tiny_architecture(d_model=64))
    pad = checkpoint.architecture.pad_id
    checkpoint.tensors["shared.weight"][pad] = np.linspace(-1, 1, 64, dtype=np.float32)
    export_marian(checkpoint, tmp_path / "m", zero_start=True)
    copied = ["source.spm", "target.spm"]
    converter = ctranslate2.converters.TransformersConverter(str(tmp_path / "m"), copy_files=copied)
    converter.convert(str(tmp_path / "ct2"))
    found, expected = imported(tmp_path / "ct2"), import_marian(tmp_path / "m")
    assert found.tensors["shared.weight"][found.architecture.pad_id].any()
    assert max(apart(found, expected).values(), default=0) < 1e-6
    assert our_ids(found, tmp_path / "ours", SENTENCES) == greedy_ids(tmp_path / "ct2", found, SENTENCES)


def test_a_decoder_that_starts_from_a_token(tmp_path: Path) -> None:
    _, converted = release_and_converted(tmp_path)
    rewrite(converted, {"decoder/start_from_zero_embedding": np.array(0, np.int8)})
    raw = json.loads((converted / "config.json").read_text())
    (converted / "config.json").write_text(json.dumps(raw | {"decoder_start_token": "</s>"}))
    found = imported(converted)
    assert found.architecture.decoder_start == found.architecture.eos_id
    assert our_ids(found, tmp_path / "ours", SENTENCES) == greedy_ids(converted, found, SENTENCES)


@pytest.mark.parametrize("start", [0.0, 0.5])
def test_a_vocabulary_with_pad(start: float, tmp_path: Path) -> None:
    """As the benchmarks write models of HMC: nothing is added, and the first position may hold pad's embedding."""
    from hmc.benchmark.peers.ctranslate2_model import write_ctranslate2

    checkpoint = tiny_checkpoint_at(tmp_path / "c", arch=tiny_architecture(d_model=64))
    arch, model = checkpoint.architecture, checkpoint.tokenizer
    assert isinstance(model, bytes)
    checkpoint.tensors["shared.weight"][arch.pad_id] = start
    checkpoint.tensors["final_logits_bias"][arch.pad_id] = -1e4
    write_ctranslate2(checkpoint, pieces_of(model), tmp_path / "ct2", None)
    for name in ("source.spm", "target.spm"):
        (tmp_path / "ct2" / name).write_bytes(model)
    found = imported(tmp_path / "ct2")
    assert (found.architecture, found.tokenizer) == (arch, model)
    assert max(apart(found, checkpoint).values(), default=0) < 1e-6


def test_vocabularies_of_earlier_versions_are_text(tmp_path: Path) -> None:
    _, converted = release_and_converted(tmp_path)
    expected = imported(converted)
    tokens = json.loads((converted / "shared_vocabulary.json").read_text())
    (converted / "shared_vocabulary.json").unlink()
    write_lines(converted / "shared_vocabulary.txt", tokens)
    assert imported(converted).tokenizer == expected.tokenizer


def test_a_wrong_matrix_is_noticed(tmp_path: Path) -> None:
    """The comparison of ids is strict enough to see one matrix that is another."""
    write_release(tmp_path / "opus", seed=5)
    converted = convert(tmp_path / "opus", tmp_path / "ct2")
    right = imported(converted)
    expected = greedy_ids(converted, right, SENTENCES)
    shutil.copytree(converted, tmp_path / "wrong")
    rewrite(tmp_path / "wrong", {"decoder/layer_0/attention/linear_0/weight": right.tensors[
        "decoder.layers.0.self_attn.q_proj.weight"]})  # fmt: skip
    assert our_ids(imported(tmp_path / "wrong"), tmp_path / "ours", SENTENCES) != expected

"""What HMC cannot express in a directory of CTranslate2, or what is damaged there, is refused with every reason."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.artifact.ctranslate2.converted import release_and_converted, rewrite

from hmc.artifact import InvalidArtifactError
from hmc.artifact.ctranslate2.reader import import_ctranslate2

pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # what other libraries warn of is not ours to fix


def refused(folder: Path, said: str) -> None:
    with pytest.raises(InvalidArtifactError, match=rf"(?s)CTranslate2 model .*{said}"):
        import_ctranslate2(folder, source_language="eng", target_language="mul")


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    return release_and_converted(tmp_path)[1]


def scalar(value: int, kind: str = "int8") -> np.ndarray:
    return np.array(value, kind)


OTHERS: dict[str, dict[str, np.ndarray | None]] = {
    "encoder/layer_0/self_attention/relative_position_keys: relative positions cannot be expressed": {
        "encoder/layer_0/self_attention/relative_position_keys": np.zeros((9, 16), np.float32)
    },
    "ffn/linear_0_noact/weight: gated feed-forward layers": {
        "decoder/layer_0/ffn/linear_0_noact/weight": np.zeros((48, 64), np.float32)
    },
    "RMS norms cannot be expressed": {"encoder/layer_1/ffn/layer_norm/beta": None},
    "layernorm_embedding/gamma: a norm on embeddings": {
        "encoder/layernorm_embedding/gamma": np.ones(64, np.float32),
        "encoder/layernorm_embedding/beta": np.ones(64, np.float32),
    },
    r"activation GELUSigmoid \(Marian's gelu\) cannot be expressed; supported: relu, swish, gelu": {
        "encoder/activation": scalar(4),
        "decoder/activation": scalar(4),
    },
    "num_heads is 4 in the encoder and 8 in the decoder": {"decoder/num_heads": scalar(8, "int16")},
    "num_heads is 0: it must be a whole number from 1": {
        "encoder/num_heads": scalar(0, "int16"),
        "decoder/num_heads": scalar(0, "int16"),
    },
    r"bias has shape \[3\], expected \[": {"decoder/projection/bias": np.zeros(3, np.float32)},
    "linear_0/weight is a single number": {"encoder/layer_0/ffn/linear_0/weight": np.array(1, np.float32)},
    "pre_norm is missing": {"decoder/pre_norm": None},
    "attention with linear biases": {"decoder/alibi": scalar(1)},
    "rotary_dim: rotary positions": {"decoder/layer_0/self_attention/rotary_dim": scalar(16, "int32")},
    "scale_embeddings is 3: embeddings must be scaled": {"encoder/scale_embeddings": np.array(3, np.float32)},
    "embeddings are scaled on one side only": {"encoder/scale_embeddings": scalar(0)},
    "encodings is missing: CTranslate2 then computes OpenNMT-tf's": {"encoder/position_encodings/encodings": None},
    "encodings does not hold Marian's sinusoids": {
        "encoder/position_encodings/encodings": np.ones((9, 64), np.float32)
    },
    "array decoder/layer_0/attention/linear_2/bias is missing": {"decoder/layer_0/attention/linear_2/bias": None},
    "array encoder/surprise does not belong": {"encoder/surprise": np.zeros(3, np.float32)},
    r"encoder/surprise does not belong.*\n.*fc1\.bias has shape \[5\], expected \[48\]": {
        "encoder/surprise": np.zeros(3, np.float32),
        "decoder/layer_0/ffn/linear_0/bias": np.zeros(5, np.float32),
    },
    r"fc1\.weight has shape \[47, 64\], expected \[48, 64\]": {
        "decoder/layer_1/ffn/linear_0/weight": np.zeros((47, 64), np.float32)
    },
    "linear_1/bias holds NaN|fc2.bias holds NaN": {
        "decoder/layer_1/ffn/linear_1/bias": np.full(64, np.nan, np.float32)
    },
    "linear_0/weight is int8 and has no scale": {"encoder/layer_0/ffn/linear_0/weight": np.ones((48, 64), np.int8)},
    "weight_scale must hold positive numbers": {
        "encoder/layer_0/ffn/linear_0/weight": np.ones((48, 64), np.int8),
        "encoder/layer_0/ffn/linear_0/weight_scale": np.zeros(48, np.float32),
    },
    r"weight_scale has shape \[3\], expected \[48\]": {
        "encoder/layer_0/ffn/linear_0/weight": np.ones((48, 64), np.int8),
        "encoder/layer_0/ffn/linear_0/weight_scale": np.ones(3, np.float32),
    },
}


@pytest.mark.parametrize("said", OTHERS)
def test_what_cannot_be_expressed_is_named(said: str, converted: Path) -> None:
    rewrite(converted, OTHERS[said])
    refused(converted, said)


def changed_config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        raw = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(raw | changes))

    return change


def other_vocabulary(change: Callable[[list[str]], object]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        tokens = json.loads((folder / "shared_vocabulary.json").read_text())
        (folder / "shared_vocabulary.json").write_text(json.dumps(change(tokens)))

    return write


FILES: dict[str, Callable[[Path], None]] = {
    "it is a WhisperSpec; only encoder-decoder": lambda folder: rewrite(folder, {}, spec="WhisperSpec"),
    "it is a TransformerDecoderSpec": lambda folder: rewrite(folder, {}, spec="TransformerDecoderSpec"),
    "revision 8 of TransformerSpec is newer": lambda folder: rewrite(folder, {}, revision=8),
    "source.spm is missing: copy it from the model": lambda folder: (folder / "source.spm").unlink(),
    "target.spm is not a SentencePiece model": lambda folder: (folder / "target.spm").write_bytes(b"no"),  # type: ignore[dict-item]
    "config.json is missing": lambda folder: (folder / "config.json").unlink(),
    "eos_token is '<eos>'; it must be '</s>'": changed_config(eos_token="<eos>"),
    "layer_norm_epsilon is 1e-06; only 1e-05": changed_config(layer_norm_epsilon=1e-6),
    "add_source_bos is true": changed_config(add_source_bos=True),
    "the source vocabulary has 2 entries, and its embedding": other_vocabulary(lambda _: ["</s>", "<unk>"]),
    "shared_vocabulary.json has no entry '<unk>'": other_vocabulary(lambda t: ["x" if p == "<unk>" else p for p in t]),
    "shared_vocabulary.json holds a piece twice": other_vocabulary(lambda t: [*t[:-1], t[0]]),
    "shared_vocabulary.json must be a list of pieces": other_vocabulary(dict.fromkeys),
    "model.bin ends within": lambda folder: os.truncate(folder / "model.bin", 40_000),
}


@pytest.mark.parametrize("said", FILES)
def test_damaged_and_unfit_files_are_named(said: str, converted: Path) -> None:
    FILES[said](converted)
    refused(converted, said)


@pytest.mark.parametrize("kind", [None, "int8"])
def test_changed_bytes_are_refused_or_change_values(kind: str | None, tmp_path: Path) -> None:
    """Bytes near names, sizes and scalars: nothing but a model or the refusal of one comes out."""
    _, converted = release_and_converted(tmp_path, kind)
    whole, draws = (converted / "model.bin").read_bytes(), np.random.default_rng(7)
    names = [found.start() for found in re.finditer(rb"(en|de)coder/", whole)]
    refusals = 0
    for _ in range(150):
        content = bytearray(whole)
        content[int(draws.choice(names)) + int(draws.integers(-12, 70))] = int(draws.integers(256))
        (converted / "model.bin").write_bytes(content)
        try:
            import_ctranslate2(converted, source_language="eng", target_language="mul")
        except InvalidArtifactError:
            refusals += 1
    assert refusals > 75


def test_languages_have_to_be_named(converted: Path) -> None:
    with pytest.raises(InvalidArtifactError, match=r"(?s)source language; .*--source-language.*target language"):
        import_ctranslate2(converted)

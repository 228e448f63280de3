"""Checkpoints of usual sizes with random weights, for timing: speed does not depend on the values of weights."""

from __future__ import annotations

import io
import itertools
import string
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import sentencepiece

from hmc.artifact.checkpoint.checkpoint import Checkpoint, CheckpointConfig, save_checkpoint
from hmc.artifact.model.architecture import Architecture, tensor_shapes
from hmc.artifact.model.heads import KINDS


def _size(
    layers: tuple[int, int], d_model: int, ffn_dim: int, heads: int, vocab_size: int, max_positions: int = 256
) -> Architecture:
    return Architecture(
        vocab_size=vocab_size, d_model=d_model, ffn_dim=ffn_dim, encoder_layers=layers[0], decoder_layers=layers[1],
        heads=heads, head_dim=d_model // heads, activation="relu", max_positions=max_positions, pad_id=2, eos_id=0,
        unk_id=1,
    )  # fmt: skip


SIZES = {
    "tiny": _size((6, 2), 256, 1536, 8, 32_000),
    "demo": _size((3, 3), 256, 512, 16, 4_000),
    "deep": _size((6, 6), 256, 1024, 8, 8_000),
    "base": _size((6, 6), 512, 2048, 8, 16_000),
}
"""Students as browsers have them (6+2 layers), the first embedded model, six layers of its width, Transformer-base."""


def sized_checkpoint(out: Path, size: str = "base", *, seed: int = 1, text: Sequence[str] = ()) -> None:
    """Writes a checkpoint of one of SIZES; gates rank heads at random.

    text: sentences of both languages for its vocabulary (BPE); without, it is made-up words.
    """
    arch = SIZES[size]
    rng, layout = np.random.default_rng(seed), arch.full_layout()
    tensors = {}
    for name, shape in tensor_shapes(arch, layout).items():
        if name.endswith("layer_norm.weight"):
            value = np.ones(shape)
        elif name.endswith("bias"):
            value = 0.02 * rng.standard_normal(shape)
        else:
            value = rng.standard_normal(shape) / np.sqrt(shape[-1])
        tensors[name] = value.astype(np.float32)
    tensors["shared.weight"][arch.pad_id] = 0
    config = CheckpointConfig(
        architecture=arch, head_layout=layout.to_json(), source_language="en", target_language="de",
        provenance={"command": "experiments.support.random_checkpoint", "seed": seed},
    )  # fmt: skip
    gates = {kind: rng.standard_normal((len(layout[kind]), arch.heads)).astype(np.float32) for kind in KINDS}
    tokenizer = _tokenizer(arch.vocab_size, text)
    save_checkpoint(Checkpoint(config=config, tensors=tensors, tokenizer=tokenizer, gates=gates), out)


def random_sentences(count: int, words: int = 23, seed: int = 2) -> list[str]:
    """Sentences of made-up words, each a token of every checkpoint."""
    known = list(_words(min(arch.vocab_size for arch in SIZES.values())))
    rng = np.random.default_rng(seed)
    return [" ".join(known[i] for i in rng.integers(0, len(known) // 2, words)) for _ in range(count)]


def _words(count: int) -> Iterator[str]:
    letters = string.ascii_lowercase
    return ("".join(w) for w in itertools.islice(itertools.product(letters, repeat=4), count))


def _tokenizer(size: int, text: Sequence[str]) -> bytes:
    """A SentencePiece model of exactly V pieces: learnt from text, or one for each of V made-up words."""
    output = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text) if text else _words(size), model_writer=output, vocab_size=size,
        model_type="bpe" if text else "word", eos_id=0, unk_id=1, pad_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    return output.getvalue()

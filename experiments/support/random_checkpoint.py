"""A Transformer-base checkpoint with random weights, for timing: speed does not depend on the values of weights."""

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

VOCABULARY = 16_000


def base_size_checkpoint(out: Path, seed: int = 1, text: Sequence[str] = ()) -> None:
    """Writes a checkpoint: 6+6 layers, 512/2048, 8 heads of 64, V = 16 000; gates rank heads at random.

    text: sentences of both languages for its vocabulary (BPE); without, it is made-up words.
    """
    arch = Architecture(
        vocab_size=VOCABULARY, d_model=512, ffn_dim=2048, encoder_layers=6, decoder_layers=6, heads=8, head_dim=64,
        activation="relu", max_positions=256, pad_id=2, eos_id=0, unk_id=1,
    )  # fmt: skip
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
    gates = {kind: rng.standard_normal((6, 8)).astype(np.float32) for kind in KINDS}
    save_checkpoint(Checkpoint(config=config, tensors=tensors, tokenizer=_tokenizer(text), gates=gates), out)


def random_sentences(count: int, words: int = 23, seed: int = 2) -> list[str]:
    """Sentences of made-up words, each a token of the checkpoint."""
    known, rng = list(_words()), np.random.default_rng(seed)
    return [" ".join(known[i] for i in rng.integers(0, VOCABULARY // 2, words)) for _ in range(count)]


def _words() -> Iterator[str]:
    letters = string.ascii_lowercase
    return ("".join(w) for w in itertools.islice(itertools.product(letters, repeat=4), VOCABULARY))


def _tokenizer(text: Sequence[str]) -> bytes:
    """A SentencePiece model of exactly V pieces: learnt from text, or one for each of V made-up words."""
    output = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text) if text else _words(), model_writer=output, vocab_size=VOCABULARY,
        model_type="bpe" if text else "word", eos_id=0, unk_id=1, pad_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    return output.getvalue()

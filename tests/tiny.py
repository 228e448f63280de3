"""A tiny model for tests: real format, real tokenizer, deterministic random weights."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import numpy as np
import sentencepiece

from hmc.artifact import Checkpoint, HeadLayout, save_checkpoint
from hmc.artifact.checkpoint.checkpoint import CheckpointConfig
from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.model.architecture import Architecture, tensor_shapes
from hmc.artifact.model.heads import KINDS
from hmc.artifact.model.layers import stack_of

LEVELS = (24, 12, 5)
"""Head budgets of the tiny bundle."""
SENTENCES = [
    "A man is standing on a ladder.", "Two dogs run across the wet grass.", "A girl in a red dress eats an apple.",
    "Several people wait for the bus.", "The boy jumps into the cold water.", "A woman plays the guitar on a stage.",
    "Children are sitting around a table.", "An old man reads a newspaper in the park.", "A cat sleeps on the sofa.",
    "Three men are working on a roof.", "A dog catches a yellow ball.", "People dance in the street at night.",
]  # fmt: skip


@cache
def tiny_tokenizer() -> bytes:
    """A SentencePiece model trained on SENTENCES."""
    output = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=output, vocab_size=120, model_type="bpe",
        eos_id=0, unk_id=1, pad_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    return output.getvalue()


def tiny_architecture(**changes: object) -> Architecture:
    """Widths of the tiny model; `changes` override fields."""
    fields: dict[str, object] = {
        "vocab_size": 120, "d_model": 32, "ffn_dim": 48, "encoder_layers": 2, "decoder_layers": 2, "heads": 4,
        "head_dim": 16, "max_positions": 96, "pad_id": 2, "eos_id": 0, "unk_id": 1,
    }  # fmt: skip
    return Architecture.model_validate(fields | changes)


FORMS: dict[str, dict[str, object]] = {
    "marian": {},
    "norms first": {"pre_norm": True},
    "norms first and last": {"pre_norm": True, "stack_norms": True},
    "own output": {"own_output": True},
    "m2m100": {"pre_norm": True, "stack_norms": True, "position_form": "fairseq", "start_id": 0},
    "all": {"stack_norms": True, "own_output": True, "position_form": "fairseq", "start_id": 5},
}
"""Forms of the model: fields of the architecture that change what it computes."""


def random_tensors(arch: Architecture, layout: HeadLayout, seed: int = 0) -> Tensors:
    """Weights of a plausible scale for every tensor of the layout."""
    rng = np.random.default_rng(seed)
    tensors: Tensors = {}
    for name, shape in tensor_shapes(arch, layout).items():
        if name.endswith("layer_norm.weight"):
            value = 1 + 0.1 * rng.standard_normal(shape)
        elif name.endswith("bias"):
            value = 0.1 * rng.standard_normal(shape)
        else:
            value = rng.standard_normal(shape) * (1.5 / np.sqrt(shape[-1]))
        tensors[name] = value.astype(np.float32)
    for name in {"shared.weight", arch.source_embedding}:
        tensors[name][arch.pad_id] = 0
    return tensors


def random_layout(arch: Architecture, seed: int) -> HeadLayout:
    """An uneven layout: each layer draws the probability of an open head, so that empty and full layers occur. A
    head of cross-attention stays open: without any, a checkpoint is refused."""
    rng = np.random.default_rng(seed)
    rows: dict[str, list[list[int]]] = {}
    for kind in KINDS:
        layers = arch.depth(stack_of(kind))
        rows[kind] = [
            np.flatnonzero(rng.random(arch.heads) < rng.choice([0, 0.3, 0.7, 1])).tolist() for _ in range(layers)
        ]
    if not any(rows["cross"]):
        rows["cross"][0] = [0]
    return HeadLayout.from_json(rows)


def tiny_checkpoint_at(
    path: Path, *, seed: int = 0, gates: bool = True, layout: HeadLayout | None = None, arch: Architecture | None = None
) -> Checkpoint:
    """Writes a tiny checkpoint and returns it."""
    arch = arch or tiny_architecture()
    layout = layout or arch.full_layout()
    rng = np.random.default_rng(seed + 1)
    checkpoint = Checkpoint(
        config=CheckpointConfig(
            architecture=arch, head_layout=layout.to_json(), source_language="en", target_language="de"
        ),
        tensors=random_tensors(arch, layout, seed),
        tokenizer=tiny_tokenizer(),
        gates={k: rng.standard_normal((len(layout[k]), arch.heads)).astype(np.float32) for k in KINDS}
        if gates
        else None,
    )
    save_checkpoint(checkpoint, path)
    return checkpoint

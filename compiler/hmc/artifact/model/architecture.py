"""Architecture of the Marian/Vaswani encoder-decoder and its relatives, and the exact tensors of a checkpoint."""

from __future__ import annotations

from typing import Literal, assert_never

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from hmc.artifact.model.ffn import STACKS, FfnWidths, Stack
from hmc.artifact.model.heads import KINDS, AttentionKind, HeadLayout
from hmc.artifact.model.layers import (
    NONE_REMOVED,
    AttentionSpec,
    FeedForwardSpec,
    NormSpec,
    RemovedLayers,
    SubLayerSpec,
    stack_of,
)

PositionForm = Literal["marian", "fairseq"]
"""marian: that of MarianMT in Transformers; position 0 comes first. fairseq (M2M100, NLLB): the first token is at
position 2, and frequencies are spaced a little wider."""
FIRST = 2
"""Position of the first token in fairseq's form: 0 and 1 belong to its padding."""
Activation = Literal["relu", "swish", "gelu"]
TARGET_EMBEDDING = "shared.weight"
SOURCE_EMBEDDING = "encoder.embed_tokens.weight"
"""Names of tensors. The first embeds targets, and is also the output projection. It embeds sources too, unless these
have their own vocabulary; then the second does."""
OUTPUT = "lm_head.weight"
"""Name of the output projection, `[vocab_size, d_model]`, where it is not the matrix that embeds targets."""
LOGITS_BIAS = "final_logits_bias"
"""Name of the output projection's bias, `[vocab_size]`."""
LARGEST = 2**31 - 1
"""Largest size of anything in a model: ONNX Runtime and SentencePiece count in 32 bits."""
MOST_LAYERS = 1024
MOST_HEADS = 1024
"""Layers of a stack, and heads of a layer. A config that says more is damaged, and reading it would not end."""


class Architecture(BaseModel):
    """Sizes of the model. `heads` and `ffn_dim` are the numbers per layer before pruning.

    `head_dim` is stored and not derived from `d_model`, so that pruning does not change it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int = Field(gt=0, le=LARGEST)
    """Size of the target vocabulary, and of the source vocabulary unless `source_vocab_size` is given."""
    source_vocab_size: int | None = Field(default=None, gt=0, le=LARGEST, exclude_if=lambda size: size is None)
    """Size of the source vocabulary; None: both sides share one. Two vocabularies have two embeddings, and EOS, unk
    and pad have the same ids in both."""
    d_model: int = Field(gt=0, le=LARGEST, multiple_of=2)
    ffn_dim: int = Field(gt=0, le=LARGEST)
    encoder_layers: int = Field(gt=0, le=MOST_LAYERS)
    decoder_layers: int = Field(gt=0, le=MOST_LAYERS)
    heads: int = Field(gt=0, le=MOST_HEADS)
    head_dim: int = Field(gt=0, le=LARGEST)
    activation: Activation = "relu"
    max_positions: int = Field(default=512, gt=1, le=LARGEST)
    scale_embedding: bool = True
    pad_id: int = Field(ge=0)
    """Pads sources and starts the decoder. Marian's embedding of it is zero. Training with tied embeddings may change
    that; the stored values are used."""
    eos_id: int = Field(ge=0)
    unk_id: int = Field(ge=0)
    start_id: int | None = Field(default=None, ge=0, exclude_if=lambda token: token is None)
    """The token that starts the decoder; None: `pad_id`."""
    pre_norm: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether layer norms are on the inputs of attention and feed-forward, and not after the residual."""
    stack_norms: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether each stack ends with a layer norm of its own."""
    own_output: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether the output projection is a matrix of its own, and not the one that embeds targets."""
    position_form: PositionForm = Field(default="marian", exclude_if=lambda form: form == "marian")
    """Which sinusoids encode positions (`position_table`)."""

    @model_validator(mode="after")
    def _ids_in_vocabulary(self) -> Architecture:
        smaller = min(self.vocab_size, self.source_size)
        both = "" if self.source_vocab_size is None else ": it has to be the same token in both vocabularies"
        for name in ("pad_id", "eos_id", "unk_id"):
            if getattr(self, name) >= smaller:
                raise ValueError(f"{name} {getattr(self, name)} is outside the vocabulary of {smaller}{both}")
        if self.decoder_start >= self.vocab_size:
            raise ValueError(f"start_id {self.start_id} is outside the vocabulary of {self.vocab_size}")
        return self

    @property
    def decoder_start(self) -> int:
        """The token that the decoder reads first."""
        return self.pad_id if self.start_id is None else self.start_id

    @property
    def output_projection(self) -> str:
        """Name of the tensor that gives logits, `[vocab_size, d_model]`."""
        return OUTPUT if self.own_output else TARGET_EMBEDDING

    @property
    def output_layer(self) -> str:
        """Name of the linear layer with that tensor."""
        return self.output_projection.removesuffix(".weight")

    def positions(self) -> npt.NDArray[np.float32]:
        """Encodings of all positions, `[max_positions, d_model]`."""
        return position_table(self.position_form, self.max_positions, self.d_model)

    @property
    def source_size(self) -> int:
        """Size of the vocabulary that sources use."""
        return self.vocab_size if self.source_vocab_size is None else self.source_vocab_size

    @property
    def source_embedding(self) -> str:
        """Name of the tensor that embeds sources, `[source_size, d_model]`."""
        return TARGET_EMBEDDING if self.source_vocab_size is None else SOURCE_EMBEDDING

    def depth(self, stack: Stack) -> int:
        """Number of layers of a stack."""
        return self.encoder_layers if stack == "encoder" else self.decoder_layers

    def attention(self, kind: AttentionKind, layer: int) -> AttentionSpec:
        """The attention of a kind in a layer: its tensors, and what heads own of them."""
        return AttentionSpec.for_layer(kind, layer, self.head_dim)

    def feed_forward(self, stack: Stack, layer: int) -> FeedForwardSpec:
        """The feed-forward sub-layer of a layer: its tensors, and what neurons own of them."""
        return FeedForwardSpec.for_layer(stack, layer)

    def sublayers(self, stack: Stack, layer: int) -> tuple[SubLayerSpec, ...]:
        """The sub-layers of a layer, in the order in which they are computed."""
        attentions = (self.attention(kind, layer) for kind in KINDS if stack_of(kind) == stack)
        return (*attentions, self.feed_forward(stack, layer))

    def stack_norm(self, stack: Stack) -> NormSpec | None:
        """The norm at the end of a stack; None if the stack has no such norm."""
        return NormSpec(f"{stack}.layer_norm") if self.stack_norms else None

    def full_layout(self) -> HeadLayout:
        """The layout with every head open."""
        return HeadLayout.full(self.encoder_layers, self.decoder_layers, self.heads)

    def layout_problems(self, layout: HeadLayout) -> list[str]:
        """What makes `layout` impossible for this architecture (empty when nothing does)."""
        problems = []
        for kind in KINDS:
            layers = self.depth(stack_of(kind))
            if len(layout[kind]) != layers:
                problems.append(f"head layout {kind}: {len(layout[kind])} layers, the architecture has {layers}")
            for layer, row in enumerate(layout[kind]):
                if row and row[-1] >= self.heads:
                    problems.append(f"head layout {kind}.{layer}: head {row[-1]}, the architecture has {self.heads}")
        return problems

    def full_ffn(self) -> FfnWidths:
        """`ffn_dim` neurons in every layer."""
        return FfnWidths(
            encoder=(self.ffn_dim,) * self.encoder_layers,
            decoder=(self.ffn_dim,) * self.decoder_layers,
        )

    def ffn_problems(self, ffn: FfnWidths) -> list[str]:
        """What makes `ffn` impossible for this architecture (empty when nothing does)."""
        full = self.full_ffn()
        problems = [
            f"ffn widths {stack}: {len(ffn[stack])} layers, the architecture has {len(full[stack])}"
            for stack in STACKS
            if len(ffn[stack]) != len(full[stack])
        ]
        return problems + [
            f"ffn widths {stack}.{layer}: {width} neurons, the architecture has {self.ffn_dim}"
            for stack, layer, width in ffn.layers()
            if width > self.ffn_dim
        ]

    def layer_problems(self, removed: RemovedLayers, layout: HeadLayout, ffn: FfnWidths) -> list[str]:
        """What makes it impossible to remove these layers (empty when nothing does). The layout and the removed layers
        have to be possible."""
        full = self.full_ffn()
        problems = []
        for stack in STACKS:
            present = set(range(len(full[stack])))
            if outside := sorted(set(removed[stack]) - present):
                problems.append(f"removed layers: the {stack} has no layer {outside[0]}")
            elif present == set(removed[stack]):
                problems.append(f"removed layers: the {stack} keeps no layer")
        if problems:
            return problems
        for kind in KINDS:
            named = stack_of(kind)
            rows = [layer for layer in removed[named] if layout[kind][layer]]
            problems += [f"removed layers: {named}.{layer} has open heads of {kind}" for layer in rows]
        wide = [(stack, layer) for stack in STACKS for layer in removed[stack] if ffn[stack][layer]]
        return problems + [f"removed layers: {stack}.{layer} has feed-forward neurons" for stack, layer in wide]


def tensor_shapes(
    arch: Architecture, layout: HeadLayout, ffn: FfnWidths | None = None, removed: RemovedLayers = NONE_REMOVED
) -> dict[str, tuple[int, ...]]:
    """Name → shape of every tensor of a checkpoint with this layout. The file may hold no other tensor.

    ffn: None means `ffn_dim` neurons in every layer. A sub-layer without heads or neurons has only the bias of its
    output and its norm. A removed layer has no tensors.
    """
    d = arch.d_model
    shapes: dict[str, tuple[int, ...]] = {
        TARGET_EMBEDDING: (arch.vocab_size, d),
        LOGITS_BIAS: (arch.vocab_size,),
    }
    if arch.source_vocab_size is not None:
        shapes[SOURCE_EMBEDDING] = (arch.source_vocab_size, d)
    if arch.own_output:
        shapes[OUTPUT] = (arch.vocab_size, d)
    for stack in STACKS:
        if norm := arch.stack_norm(stack):
            shapes |= dict.fromkeys(norm.tensors, (d,))
    for kind in KINDS:
        for layer, row in enumerate(layout[kind]):
            shapes |= arch.attention(kind, layer).shapes(len(row), d)
    for stack, layer, width in (ffn or arch.full_ffn()).layers():
        shapes |= arch.feed_forward(stack, layer).shapes(width, d)
    return {name: shape for name, shape in shapes.items() if not removed.has_tensor(name)}


def parameter_count(
    arch: Architecture, layout: HeadLayout, ffn: FfnWidths | None = None, removed: RemovedLayers = NONE_REMOVED
) -> int:
    """Parameters of a model with this layout (positions are computed, not learned)."""
    return sum(int(np.prod(shape)) for shape in tensor_shapes(arch, layout, ffn, removed).values())


def position_table(form: PositionForm, positions: int, d_model: int) -> npt.NDArray[np.float32]:
    """`[positions, d_model]`: row t encodes the token t, with sines in the first half and cosines in the second."""
    if form == "marian":
        return sinusoidal_positions(positions, d_model)
    if form == "fairseq":
        return fairseq_positions(positions, d_model)
    assert_never(form)


def sinusoidal_positions(positions: int, d_model: int) -> npt.NDArray[np.float32]:
    """Marian's form, `[positions, d_model]` (Vaswani et al. 2017, 3.5)."""
    column = np.arange(d_model // 2)
    angle = np.arange(positions)[:, None] / np.power(10000.0, 2 * column / d_model)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)


def fairseq_positions(positions: int, d_model: int) -> npt.NDArray[np.float32]:
    """fairseq's form, `[positions, d_model]`, with angles in 32 bits as in Transformers' M2M100."""
    half = d_model // 2
    step = np.float32(np.log(10000) / max(half - 1, 1))
    exponents = np.arange(half, dtype=np.float32) * -step
    frequencies = np.exp(exponents.astype(np.float64)).astype(np.float32)
    angle = np.arange(FIRST, FIRST + positions, dtype=np.float32)[:, None] * frequencies
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)

"""The layers of a model: the tensors of each, who owns their rows and columns, and layers that were removed whole.

A layer is a row of sub-layers: one or two of attention, then a feed-forward one. A sub-layer is made of *units*, which
can be removed one by one: heads, or neurons. `Architecture` says which sub-layers a model has. Whoever names a tensor
of a layer reads it here: slimming, graphs, counts of parameters, importers, the PyTorch model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, NonNegativeInt

from hmc.artifact.model.ffn import STACKS, Stack
from hmc.artifact.model.heads import AttentionKind

EPSILON = 1e-5
"""Added to the variance by every norm, as in MarianMTModel."""


@dataclass(frozen=True)
class _Named:
    name: str
    """Prefix of its tensors, such as `decoder.layers.0.fc1`. Names are those of MarianMTModel."""

    @property
    def weight(self) -> str:
        """Name of a tensor."""
        return f"{self.name}.weight"

    @property
    def bias(self) -> str:
        """Name of a tensor."""
        return f"{self.name}.bias"

    @property
    def tensors(self) -> tuple[str, str]:
        """Names of both."""
        return self.weight, self.bias


class LinearSpec(_Named):
    """y = W x + b: `weight` `[out, in]`, `bias` `[out]`."""


class NormSpec(_Named):
    """A layer norm of states `[…, d_model]`: `weight` and `bias` `[d_model]`."""


@dataclass(frozen=True)
class SubLayerSpec:
    """Attention or feed-forward, with the norm that belongs to it.

    A unit owns rows of the `inputs`, and columns of the `output`. Without any unit, only the bias of the output and the
    norm are left.
    """

    name: str
    inputs: tuple[LinearSpec, ...]
    output: LinearSpec
    norm: NormSpec
    unit: int
    """Features of each unit: the dimension of a head, or 1 for a neuron."""

    @property
    def owned(self) -> tuple[tuple[str, int], ...]:
        """(tensor, axis): the tensors that units own parts of; rows where the axis is 0, columns where it is 1."""
        rows = chain.from_iterable(linear.tensors for linear in self.inputs)
        return (*((name, 0) for name in rows), (self.output.weight, 1))

    def features(self, units: Sequence[int]) -> npt.NDArray[np.int64]:
        """Indices of the rows or columns that units own, by their positions: `[len(units) · unit]`."""
        return (np.asarray(units, np.int64)[:, None] * self.unit + np.arange(self.unit)).reshape(-1)

    def shapes(self, units: int, d_model: int) -> dict[str, tuple[int, ...]]:
        """Name → shape of every tensor, with so many units."""
        inner = units * self.unit
        shapes = dict[str, tuple[int, ...]]()
        if units:
            for linear in self.inputs:
                shapes |= {linear.weight: (inner, d_model), linear.bias: (inner,)}
            shapes[self.output.weight] = (d_model, inner)
        shapes[self.output.bias] = (d_model,)
        return shapes | dict.fromkeys(self.norm.tensors, (d_model,))


@dataclass(frozen=True)
class AttentionSpec(SubLayerSpec):
    """Its units are heads: rows of W_Q, W_K and W_V, and columns of W_O (Voita et al. 2019, equation 3)."""

    kind: AttentionKind

    @classmethod
    def for_layer(cls, kind: AttentionKind, layer: int, head_dim: int) -> AttentionSpec:
        """The attention of a layer."""
        module = "encoder_attn" if kind == "cross" else "self_attn"
        name = f"{layer_name(stack_of(kind), layer)}.{module}"
        inputs = tuple(LinearSpec(f"{name}.{letter}_proj") for letter in "qkv")
        return cls(name, inputs, LinearSpec(f"{name}.out_proj"), NormSpec(f"{name}_layer_norm"), head_dim, kind)

    @property
    def query(self) -> LinearSpec:
        """W_Q."""
        return self.inputs[0]

    @property
    def key(self) -> LinearSpec:
        """W_K."""
        return self.inputs[1]

    @property
    def value(self) -> LinearSpec:
        """W_V."""
        return self.inputs[2]


@dataclass(frozen=True)
class FeedForwardSpec(SubLayerSpec):
    """Its units are neurons: rows of `fc1`, and columns of `fc2`. The activation is between the two."""

    @classmethod
    def for_layer(cls, stack: Stack, layer: int) -> FeedForwardSpec:
        """The feed-forward sub-layer of a layer."""
        name = layer_name(stack, layer)
        return cls(
            name, (LinearSpec(f"{name}.fc1"),), LinearSpec(f"{name}.fc2"), NormSpec(f"{name}.final_layer_norm"), 1
        )


def stack_of(kind: AttentionKind) -> Stack:
    """The stack whose layers have heads of a kind."""
    return "encoder" if kind == "encoder_self" else "decoder"


def layer_name(stack: Stack, layer: int) -> str:
    """The prefix of the names of a layer's tensors."""
    return f"{stack}.layers.{layer}"


def layer_of(tensor: str) -> tuple[Stack, int, str] | None:
    """Stack, number and the rest of the name, of a tensor that belongs to a layer; None for others."""
    for stack in STACKS:
        number, _, rest = tensor.removeprefix(f"{stack}.layers.").partition(".")
        if tensor.startswith(f"{stack}.layers.") and rest:
            return stack, int(number), rest
    return None


class RemovedLayers(BaseModel):
    """Removed layers, by their original numbers. Such a layer returns its input. They have no tensors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    encoder: tuple[NonNegativeInt, ...] = ()
    decoder: tuple[NonNegativeInt, ...] = ()

    @classmethod
    def from_pairs(cls, layers: Iterable[tuple[Stack, int]]) -> RemovedLayers:
        """Of (stack, layer) pairs in any order."""
        pairs = list(layers)
        return cls(**{stack: tuple(sorted(layer for s, layer in pairs if s == stack)) for stack in STACKS})

    def __getitem__(self, stack: Stack) -> tuple[int, ...]:
        layers: tuple[int, ...] = getattr(self, stack)
        return layers

    def __bool__(self) -> bool:
        return bool(self.encoder or self.decoder)

    @property
    def total(self) -> int:
        """Removed layers of both stacks."""
        return len(self.encoder) + len(self.decoder)

    def has_tensor(self, name: str) -> bool:
        """Whether a tensor belongs to a removed layer."""
        owner = layer_of(name)
        return owner is not None and owner[1] in self[owner[0]]


NONE_REMOVED = RemovedLayers()

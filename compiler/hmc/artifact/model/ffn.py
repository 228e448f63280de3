"""Feed-forward neurons: how many each layer keeps, and budgets of them (Behnke & Heafield 2021)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from hmc.artifact.errors import InvalidRequestError

Stack = Literal["encoder", "decoder"]
STACKS: tuple[Stack, ...] = get_args(Stack)

Neurons = Mapping[Stack, Sequence[Sequence[int]]]
"""Neurons to keep: stack → for every layer their ascending positions among those the layer has."""


class FfnWidths(BaseModel):
    """Number of feed-forward neurons of every layer. A layer with 0 neurons adds only the bias of `fc2`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    encoder: tuple[NonNegativeInt, ...]
    decoder: tuple[NonNegativeInt, ...]

    @classmethod
    def from_neurons(cls, kept: Neurons) -> FfnWidths:
        """The widths after all neurons but `kept` are removed."""
        return cls(**{stack: tuple(map(len, kept[stack])) for stack in STACKS})

    def __getitem__(self, stack: Stack) -> tuple[int, ...]:
        layers: tuple[int, ...] = getattr(self, stack)
        return layers

    def layers(self) -> Iterator[tuple[Stack, int, int]]:
        """(stack, layer, width) of every layer, the encoder's first."""
        for stack in STACKS:
            yield from ((stack, layer, width) for layer, width in enumerate(self[stack]))

    @property
    def total(self) -> int:
        """Neurons over all layers."""
        return sum(self.encoder) + sum(self.decoder)

    @property
    def widest(self) -> int:
        """The largest width of a layer."""
        return max((*self.encoder, *self.decoder))


@dataclass(frozen=True)
class NeuronBudget:
    """How many neurons of the whole model stay: a number, or per cent of its present neurons."""

    amount: float
    percent: bool = False

    def __str__(self) -> str:
        return f"{self.amount:g}%" if self.percent else f"{self.amount:.0f}"

    def neurons(self, total: int) -> int:
        """How many of `total` neurons stay. Raises InvalidRequestError unless at least one is removed."""
        if not total:
            raise InvalidRequestError(
                f"feed-forward budget {self}: this checkpoint has no feed-forward neurons left to close"
            )
        number = -1
        if math.isfinite(self.amount):
            number = round(self.amount / 100 * total) if self.percent else int(self.amount)
        if not 0 <= number < total:
            raise InvalidRequestError(
                f"feed-forward budget {self}: this checkpoint has {total} feed-forward neurons; choose 0 to "
                f"{total - 1}, or less than 100%"
            )
        return number


def parse_neuron_budgets(text: str) -> list[NeuronBudget]:
    """Reads `1536`, `50%`, or several with commas between them. Raises InvalidRequestError."""
    return [_budget(word.strip(), text) for word in text.split(",") if word.strip()]


def _budget(word: str, text: str) -> NeuronBudget:
    try:
        if word.endswith("%"):
            share = float(word[:-1])
            if not math.isfinite(share):
                raise ValueError(f"{share} is not a finite number")
            return NeuronBudget(share, percent=True)
        return NeuronBudget(int(word))
    except ValueError as error:
        raise InvalidRequestError(
            f"feed-forward budget {text!r}: {word!r} is neither a number of neurons nor a share; write 1536 or 50%"
        ) from error

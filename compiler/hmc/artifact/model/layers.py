"""Layers that were removed whole: their output is their input."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from hmc.artifact.model.ffn import STACKS, Stack


class RemovedLayers(BaseModel):
    """Layers that do nothing, by their original numbers. They have neither heads nor neurons, biases nor norms."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    encoder: tuple[NonNegativeInt, ...] = ()
    decoder: tuple[NonNegativeInt, ...] = ()

    @classmethod
    def of(cls, layers: Iterable[tuple[Stack, int]]) -> RemovedLayers:
        """Of (stack, layer) pairs in any order."""
        found = list(layers)
        return cls(**{stack: tuple(sorted(layer for s, layer in found if s == stack)) for stack in STACKS})

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
        """Whether the tensor `STACK.layers.LAYER.…` belongs to a removed layer."""
        stack, _, rest = name.partition(".layers.")
        if stack not in STACKS or not rest:
            return False
        return int(rest.partition(".")[0]) in (self.encoder if stack == "encoder" else self.decoder)


NONE_REMOVED = RemovedLayers()

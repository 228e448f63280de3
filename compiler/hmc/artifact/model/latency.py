"""A latency table: what each part of a model costs on one machine, as one user serves it, and what a model costs by it.

A sub-layer with nothing left costs nothing beside its layer. One with n heads or neurons costs `open_ms` + `each_ms` ·
n, n rounded up to a multiple of `step`, because kernels compute whole blocks. A removed layer costs nothing at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from hmc.artifact.errors import InvalidRequestError, field_problems
from hmc.artifact.git_lfs import why
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.ffn import STACKS, FfnWidths, Stack
from hmc.artifact.model.heads import KINDS, AttentionKind, HeadLayout
from hmc.artifact.model.layers import NONE_REMOVED, RemovedLayers, stack_of
from hmc.artifact.rounding import round_up
from hmc.artifact.storage.files import write_whole

SCHEMA_VERSION = 1


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Sizes(_Part):
    """How much of a model is left: numbers of heads by kind and layer and of neurons by stack and layer, and layers."""

    heads: Mapping[AttentionKind, tuple[int, ...]]
    neurons: FfnWidths
    removed: RemovedLayers = NONE_REMOVED

    @classmethod
    def from_layout(cls, layout: HeadLayout, neurons: FfnWidths, removed: RemovedLayers = NONE_REMOVED) -> Self:
        """The sizes of a model with these heads, neurons and layers."""
        open_heads: dict[AttentionKind, tuple[int, ...]] = {kind: tuple(map(len, layout[kind])) for kind in KINDS}
        return cls(heads=open_heads, neurons=neurons, removed=removed)

    def layers(self, stack: Stack) -> list[int]:
        """Numbers of the layers that are not removed."""
        return [layer for layer in range(len(self.neurons[stack])) if layer not in self.removed[stack]]

    def __str__(self) -> str:
        layers = "+".join(str(len(self.layers(stack))) for stack in STACKS)
        open_heads = ", ".join(f"{kind} {list(self.heads[kind])}" for kind in KINDS)
        widths = ", ".join(f"{stack} {list(self.neurons[stack])}" for stack in STACKS)
        return f"{layers} layers; heads: {open_heads}; neurons: {widths}"


class Cost(_Part):
    """Cost of one attention or feed-forward sub-layer, in milliseconds for the request of the table's setting."""

    open_ms: float = Field(ge=0)
    """Of a sub-layer that has anything left."""
    each_ms: float = Field(ge=0)
    """Of each head or neuron."""
    step: PositiveInt = 1
    """Numbers are rounded up to a multiple of this."""

    def ms(self, number: int) -> float:
        """Cost of `number` heads or neurons."""
        return self.open_ms + self.each_ms * round_up(number, self.step) if number else 0.0


class ServingSetting(_Part):
    """How the model is served: the setting in which the table was measured."""

    precision: str
    batch: PositiveInt
    """Sentences of a request."""
    beam: PositiveInt
    source_tokens: float = Field(gt=0)
    """Mean length of the sentences, with EOS."""
    target_tokens: PositiveInt
    """Steps of the search: every translation had this length."""
    threads: int = Field(ge=0)
    device: str = "cpu"
    machine: str = ""


class Observation(_Part):
    """One measured model."""

    sizes: Sizes
    ms: float = Field(gt=0)
    held_out: bool = False
    """Whether it was left out of the fit, to find the table's error."""


class LatencyTable(_Part):
    """Milliseconds of each part of the model. All costs are for one request of the setting."""

    schema_version: int = SCHEMA_VERSION
    setting: ServingSetting
    architecture: Architecture
    checkpoint: str = ""
    """Digest of the checkpoint whose parts were measured."""
    fixed_ms: float = Field(ge=0)
    """Embeddings, output projection, search, tokenizer: what no pruning saves."""
    layers: Mapping[Stack, float]
    """Of a layer with nothing left but its norms."""
    heads: Mapping[AttentionKind, Cost]
    neurons: Mapping[Stack, Cost]
    worst_error: float = 0.0
    """Largest relative error of the sizes that were held out."""
    mean_error: float = 0.0
    """Mean of the absolute relative errors of the sizes that were held out."""
    observations: tuple[Observation, ...] = ()

    def ms(self, sizes: Sizes) -> float:
        """Predicted latency of a model."""
        total = self.fixed_ms
        for stack in STACKS:
            present = sizes.layers(stack)
            total += self.layers[stack] * len(present)
            total += sum(self.neurons[stack].ms(sizes.neurons[stack][layer]) for layer in present)
        for kind in KINDS:
            stack = stack_of(kind)
            total += sum(self.heads[kind].ms(sizes.heads[kind][layer]) for layer in sizes.layers(stack))
        return total

    def observed_ms(self, sizes: Sizes) -> float:
        """Latency of a model: as it was measured, or else as predicted."""
        return next((o.ms for o in self.observations if o.sizes == sizes), self.ms(sizes))

    def floor_ms(self, sizes: Sizes) -> float:
        """Predicted latency of the smallest model that pruning makes of one of these sizes: one layer a stack, and one
        cross-attention head, if there is any."""
        return self.fixed_ms + sum(self.layers.values()) + self.heads["cross"].ms(min(1, sum(sizes.heads["cross"])))


def write_table(table: LatencyTable, file: Path) -> None:
    """Writes the table as JSON, whole or not at all."""
    write_whole(file, table.model_dump_json(indent=1) + "\n")


def read_table(file: Path) -> LatencyTable:
    """Reads what `write_table` wrote. Raises InvalidRequestError with what is wrong with the file."""
    advice = "measure it again"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        version = content.get("schema_version") if isinstance(content, dict) else None
        if version != SCHEMA_VERSION:
            raise InvalidRequestError(
                f"{file} is not a latency table of version {SCHEMA_VERSION} (its schema_version is {version}); {advice}"
            )
        return LatencyTable.model_validate(content)
    except OSError as error:
        raise InvalidRequestError(f"latency table {file} cannot be read ({error.strerror}); {advice}") from error
    except ValidationError as error:  # before ValueError, which it is
        raise InvalidRequestError(f"latency table {file}: {field_problems(error)[0]}; {advice}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"latency table {file} {why(file, f'is not JSON ({error}); {advice}')}") from error

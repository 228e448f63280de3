"""Step programs: what a level computes, as two short lists of operations with names of tensors and integers.

`encode` runs once a sentence, `step` once a token. `LEVEL/program.json` holds them beside the level's graphs, and says
where each tensor lies: large ones in the files that the graphs read. A removed head or neuron is a smaller integer.
A closed attention has no operation but the bias of its output.

Shapes: R rows (hypotheses in `step`, source tokens in `encode`), d the model's width, H heads of width D, V the
vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError, model_validator

from hmc.artifact.errors import InvalidArtifactError, field_problems
from hmc.artifact.model.architecture import Activation

PROGRAM = "program.json"
PROGRAM_TENSORS = "program.bin"
"""Files in a level's folder: the program, and the tensors that are too small for a file of their own."""
ElementType = Literal["float32", "float16", "bfloat16", "int8"]
BYTES: Mapping[ElementType, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
BLOCK = 4096
"""Tokens of the vocabulary that `candidates` looks at together. One fixed size, so that sums have one order."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TensorPlace(_Strict):
    """Where a tensor lies in the bundle: little-endian, in C order."""

    file: str
    """Path within the bundle. It may be a weight of a wider level, of which this level has the first rows or columns.
    """
    offset: NonNegativeInt = 0
    """Of the first element, in bytes."""
    shape: tuple[PositiveInt, ...]
    type: ElementType
    leading: PositiveInt | None = None
    """Elements from the beginning of a row to that of the next, of a matrix that has only some columns of what the file
    holds. None: the rows follow each other."""

    @property
    def bytes(self) -> int:
        """Its size."""
        return prod(self.shape) * BYTES[self.type]

    @property
    def end(self) -> int:
        """The byte of the file that follows its last one."""
        if self.leading is None:
            return self.offset + self.bytes
        rows, columns = self.shape
        return self.offset + ((rows - 1) * self.leading + columns) * BYTES[self.type]

    @model_validator(mode="after")
    def _rows_lie_apart(self) -> TensorPlace:
        if self.leading is not None and (len(self.shape) != 2 or self.leading < self.shape[1]):
            raise ValueError(f"a leading dimension of {self.leading} does not fit the shape {list(self.shape)}")
        return self


class Range(_Strict):
    """Static quantisation of a value to 8 bits: real = scale · (q − zero_point)."""

    scale: float = Field(gt=0)
    zero_point: int = 0
    """0 to 255 for unsigned integers; 0 for signed ones."""
    signed: bool = False
    """Whether q is −128 to 127; else 0 to 255."""


class Norm(_Strict):
    """Layer norm over the last axis: (v − mean) / √(variance + epsilon) · weight + bias."""

    weight: str
    bias: str
    epsilon: float
    output: str | None = None
    """Name of the result; None: only this operation reads it."""


class Sum(_Strict):
    """parts + bias + residual, in this order. What is None is left out."""

    parts: str | None = None
    bias: str | None = None
    residual: str
    output: str | None = None
    """As in `Norm`."""


class Matrix(_Strict):
    """A weight with its bias: y = x Wᵀ + b."""

    weight: str
    """Floats `[outputs, inputs]`; int8 `[inputs, outputs]`, as ONNX's operators take them."""
    scales: str | None = None
    """int8: `[outputs]`, real weight = scale · integer. None for floats."""
    bias: str | None = None
    """`[outputs]`."""
    outputs: PositiveInt


class Product(_Strict):
    """The matrices that read one value. Their results stand one after the other."""

    inputs: PositiveInt
    matrices: tuple[Matrix, ...] = Field(min_length=1)
    range: Range | None = None
    """int8: the range to which the input is quantised. None: the product is one of floats."""

    @property
    def outputs(self) -> int:
        """Width of the result."""
        return sum(matrix.outputs for matrix in self.matrices)


class Embed(_Strict):
    """rows of the table · factor + positions → `[R, d]`."""

    kind: Literal["embed"] = "embed"
    table: str
    """`[V, d]` floats or int8."""
    scales: str | None = None
    """int8: `[V, 1]`, with the factor in them."""
    factor: float = 1.0
    positions: str
    """`[max_positions, d]`."""
    output: str


class FusedLinear(_Strict):
    """(sum →) (norm →) (product → activation). Either `sum` or `input` is read."""

    kind: Literal["linear"] = "linear"
    sum: Sum | None = None
    input: str | None = None
    norm: Norm | None = None
    product: Product | None = None
    activation: Activation | None = None
    output: str | None = None
    """Of the product. None without one."""


class _Attention(_Strict):
    heads: PositiveInt
    width: PositiveInt
    """D, of each head."""
    original: tuple[NonNegativeInt, ...] = ()
    """The heads by their numbers in the unpruned model, in the order in which weights and values have them: those that
    narrower levels keep come first. Empty, in programs that were written before there was an order: by their numbers.
    """
    scale: float
    """Of scores: 1 / √D."""
    query: Range | None = None
    key: Range | None = None
    value: Range | None = None
    """int8: ranges of queries, keys and values. None: they stay floats."""


class AttendSelf(_Attention):
    """Writes each row's key and value, and attends over the row's own tokens so far."""

    kind: Literal["attend_self"] = "attend_self"
    input: str
    """`[R, 3 · H · D]`: queries, keys, values."""
    plane: NonNegativeInt
    """Number of the cache, from 0 on."""
    output: str


class AttendSource(_Attention):
    """Attends over the source positions of the row's sentence."""

    kind: Literal["attend_source"] = "attend_source"
    input: str
    """`[R, H · D]`: queries."""
    plane: NonNegativeInt
    layer: NonNegativeInt
    """The decoder layer, by its original number."""
    output: str


class AttendEncoder(_Attention):
    """All positions of a sentence over all of them."""

    kind: Literal["attend_encoder"] = "attend_encoder"
    input: str
    """`[R, 3 · H · D]`: queries, keys, values."""
    output: str


class StoreSource(_Strict):
    """Writes keys and values that `attend_source` of the same plane reads."""

    kind: Literal["store_source"] = "store_source"
    input: str
    """`[R, 2 · H · D]`: keys, values."""
    plane: NonNegativeInt
    heads: PositiveInt
    width: PositiveInt
    key: Range | None = None
    value: Range | None = None


class TopCandidates(_Strict):
    """The best tokens of each row with their log-probabilities. Logits `[R, V]` are never written.

    Blocks of `block` tokens give their best (ties to the lower id), their maximum and their sum of exponentials. They
    are merged in order.
    """

    kind: Literal["candidates"] = "candidates"
    input: str
    product: Product
    block: PositiveInt = BLOCK
    shortlist: bool = False
    """Whether a row sees only the tokens of its sentence's list."""


Operation = Annotated[
    Embed | FusedLinear | AttendSelf | AttendSource | AttendEncoder | StoreSource | TopCandidates,
    Field(discriminator="kind"),
]


class Program(_Strict):
    """Contents of `program.json`."""

    schema_version: Literal[1] = 1
    type: Literal["float32", "float16", "bfloat16"]
    """In which values are stored between operations. int8 levels have float32."""
    tensors: dict[str, TensorPlace]
    encode: tuple[Operation, ...]
    step: tuple[Operation, ...]


def program_path(level: str) -> str:
    """Path of a level's program within the bundle."""
    return f"{level}/{PROGRAM}"


def program_tensors_path(level: str) -> str:
    """Path within the bundle of the program's small tensors."""
    return f"{level}/{PROGRAM_TENSORS}"


def read_program(bundle: Path, level: str) -> Program:
    """Reads the program of a level. Raises InvalidArtifactError if it is not a program."""
    path = bundle / program_path(level)
    fix = "Compile the bundle again with `hmc compile`, or copy it again from where it was whole."
    try:
        return Program.model_validate_json(path.read_bytes())
    except OSError as error:
        problem = f"{program_path(level)} cannot be read: {error.strerror}"
        raise InvalidArtifactError(f"bundle {bundle}", [problem], fix) from error
    except ValidationError as error:
        problems = [f"{program_path(level)}: {problem}" for problem in field_problems(error)]
        raise InvalidArtifactError(f"bundle {bundle}", problems, fix) from error


def program_json(program: Program) -> bytes:
    """The file's content: an operation a line."""
    content = program.model_dump(mode="json", exclude_none=True, exclude_defaults=False)
    lines = [f' "schema_version": {program.schema_version},', f' "type": {json.dumps(program.type)},']
    tensors = [f"  {json.dumps(name)}: {json.dumps(place)}" for name, place in content["tensors"].items()]
    lines += [' "tensors": {', ",\n".join(tensors), " },"]
    for name, end in (("encode", ","), ("step", "")):
        operations = [f"  {json.dumps(operation)}" for operation in content[name]]
        lines += [f' "{name}": [', ",\n".join(operations), f" ]{end}"]
    return ("{\n" + "\n".join(lines) + "\n}\n").encode()

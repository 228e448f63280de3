"""What a program costs, counted: operations, bytes that are read, multiplications. And milliseconds by rough speeds.

Counting needs no machine. It tells what pruning saves where an operation costs more than what it computes: an attention
without heads has no operations, and a layer that is gone has none either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from hmc.artifact.program.operations import (
    BYTES,
    AttendEncoder,
    AttendSelf,
    AttendSource,
    Embed,
    FusedLinear,
    Operation,
    Product,
    Program,
    StoreSource,
    TopCandidates,
)


@dataclass(frozen=True)
class Counts:
    """Of one operation, or of several."""

    operations: int = 0
    bytes: int = 0
    """Of weights, and of keys and values."""
    floats: int = 0
    """Multiplications of floats, each with an addition."""
    integers: int = 0
    """Multiplications of 8-bit integers."""
    attended: int = 0
    """Multiplications with keys and values."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.operations + other.operations, self.bytes + other.bytes, self.floats + other.floats,
            self.integers + other.integers, self.attended + other.attended,
        )  # fmt: skip


@dataclass(frozen=True)
class Speed:
    """Rough speeds of a kind of device."""

    bytes_per_s: float
    floats_per_s: float
    integers_per_s: float
    attended_per_s: float
    operation_s: float
    """Of an operation, beside what it reads and computes."""
    step_s: float
    """Of a step beside its operations: search, and the way through the runtime."""
    row_s: float
    """Of each row of a step, for the same."""

    def seconds(self, counts: Counts) -> float:
        """Of operations, one after another."""
        products = counts.floats / self.floats_per_s + counts.integers / self.integers_per_s
        attention = counts.attended / self.attended_per_s
        return counts.operations * self.operation_s + counts.bytes / self.bytes_per_s + products + attention


SPEEDS: Mapping[Literal["cpu", "cuda"], Speed] = {
    "cpu": Speed(
        bytes_per_s=1e12,
        floats_per_s=50e9,
        integers_per_s=167e9,
        attended_per_s=2.44e9,
        operation_s=1.95e-6,
        step_s=1.75e-5,
        row_s=0.0,
    ),
    "cuda": Speed(
        bytes_per_s=2.5e12,
        floats_per_s=1e14,
        integers_per_s=1e14,
        attended_per_s=1e14,
        operation_s=1.25e-6,
        step_s=3.5e-5,
        row_s=0.0,
    ),
}
"""Device → its speeds.

`cpu`: fitted to the native executor on two cores with AVX2, two levels in int8 of a model of width 256 at 1, 4, 32 and
128 rows (`experiments.cost --fit`): all ten were within 15 %. Minutes later the same machine took 1.2 to 1.5 times as
long for all of them: ratios hold, milliseconds do not. Weights lay in the processor's cache, so their bytes cost next
to nothing. Products of floats were not fitted.

`cuda`: a decoder layer of width 512 has 8 operations and takes 13 µs of a step of 120 for one row, most of it to start
them."""


def count(program: Program, operations: Sequence[Operation], rows: int, positions: int) -> Counts:
    """Counts of operations of a program.

    rows: R of the operations. positions: tokens that a row attends over, its own tokens or the tokens of its source.
    """
    return sum((_count_one(program, operation, rows, positions) for operation in operations), Counts())


def _count_one(program: Program, operation: Operation, rows: int, positions: int) -> Counts:
    if isinstance(operation, Embed):
        place = program.tensors[operation.table]
        return Counts(1, rows * place.shape[1] * BYTES[place.type])
    if isinstance(operation, FusedLinear):
        return Counts(1) + (_product(program, operation.product, rows) if operation.product else Counts())
    if isinstance(operation, TopCandidates):
        return Counts(1) + _product(program, operation.product, rows)
    values = rows * operation.heads * operation.width
    size = 1 if operation.key else BYTES[program.type]  # of a number in a key or a value
    if isinstance(operation, StoreSource):
        return Counts(1, 2 * values * size)
    read = 1 if isinstance(operation, AttendEncoder) else positions  # there all rows read the same keys and values
    if isinstance(operation, AttendEncoder | AttendSelf | AttendSource):
        return Counts(1, 2 * values * read * size, attended=2 * values * positions)
    assert_never(operation)


def _product(program: Program, product: Product, rows: int) -> Counts:
    size = sum(program.tensors[matrix.weight].bytes for matrix in product.matrices)
    multiplications = rows * product.inputs * product.outputs
    return Counts(0, size, 0, multiplications) if product.range else Counts(0, size, multiplications)


@dataclass(frozen=True)
class Request:
    """What is translated in one call."""

    sentences: int
    beam: int
    source: int
    """Tokens of each sentence, with EOS."""
    target: int
    """Steps of the search."""


def request_ms(program: Program, request: Request, speed: Speed) -> float:
    """Milliseconds of one request."""
    tokens = request.sentences * request.source
    rows = request.sentences * request.beam
    once = speed.seconds(count(program, program.encode, tokens, request.source))
    step = speed.seconds(count(program, program.step, rows, (request.source + request.target) // 2))
    beside = (1 + request.target) * speed.step_s + request.target * rows * speed.row_s
    return 1000.0 * (once + request.target * step + beside)

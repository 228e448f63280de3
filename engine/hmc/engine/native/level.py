"""Levels and batches of the native executor, as Python sees them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from hmc.artifact.model.architecture import Architecture
from hmc.artifact.program import operations as ops
from hmc.artifact.program.operations import Program, read_program
from hmc.engine.arithmetic import Float32
from hmc.engine.native import library as c
from hmc.engine.tensors import Tensor, read_tensors

F = np.float32
Int32 = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
KINDS = {
    ops.Embed: 0,
    ops.FusedLinear: 1,
    ops.AttendEncoder: 2,
    ops.StoreSource: 3,
    ops.AttendSelf: 4,
    ops.AttendSource: 5,
    ops.TopCandidates: 6,
}
Attention: TypeAlias = ops.AttendEncoder | ops.StoreSource | ops.AttendSelf | ops.AttendSource
ACTIVATIONS = {None: 0, "relu": 1, "swish": 2, "gelu": 3}
MOST_THREADS = 64
"""Of a batch."""


def _check(result: int, what: str) -> int:
    """Raises MemoryError or ValueError for a call that failed."""
    if result == c.NO_MEMORY:
        raise MemoryError(f"native executor: no memory to {what}")
    if result < 0:
        raise ValueError(f"native executor: cannot {what}: an argument is not one that it takes")
    return result


class _Lists:
    """The operations of a program as C structures, with numbered values, and what must stay alive."""

    def __init__(self, program: Program, arch: Architecture, tensors: dict[str, Tensor]) -> None:
        self.arch = arch
        self.tensors = tensors
        self.read: list[Any] = []
        """What is read while the level is opened."""
        self.kept: list[Tensor] = []
        """What is read later too."""
        self.numbers: dict[str, int] = {}
        self.widths: list[int] = []
        self.encode = self._list(program.encode)
        self.numbers = {}
        self.step = self._list(program.step)

    def _list(self, operations: Sequence[ops.Operation]) -> Any:
        array = (c.OperationStruct * len(operations))()
        for struct, operation in zip(array, operations, strict=True):
            struct.kind = KINDS[type(operation)]
            for name in ("input", "output", "parts", "residual", "sum_output", "norm_output"):
                setattr(struct, name, -1)
            if isinstance(operation, ops.Embed):
                self._embed(struct, operation)
            elif isinstance(operation, ops.FusedLinear):
                self._linear(struct, operation)
            elif isinstance(operation, ops.TopCandidates):
                self._product(struct, operation.product)
                struct.input = self.numbers[operation.input]
                struct.block = operation.block
            else:
                self._attention(struct, operation)
        self.read.append(array)
        return array

    def _embed(self, struct: c.OperationStruct, operation: ops.Embed) -> None:
        table = self.tensors[operation.table]
        struct.table_is_int8 = table.dtype == np.int8
        struct.table = self._pointer(table)
        if operation.scales:
            struct.table_scales = self._pointer(self.tensors[operation.scales])
        struct.factor = operation.factor
        struct.positions = self._pointer(self.tensors[operation.positions])
        struct.outputs = table.shape[1]
        struct.output = self._value(operation.output, table.shape[1])

    def _linear(self, struct: c.OperationStruct, operation: ops.FusedLinear) -> None:
        if operation.sum is not None:
            struct.residual = self.numbers[operation.sum.residual]
            width = self.widths[struct.residual]
            if operation.sum.parts is not None:
                struct.parts = self.numbers[operation.sum.parts]
            if operation.sum.bias is not None:
                struct.sum_bias = self._pointer(self.tensors[operation.sum.bias])
            if operation.sum.output is not None:
                struct.sum_output = self._value(operation.sum.output, width)
        else:
            assert operation.input is not None
            struct.input = self.numbers[operation.input]
            width = self.widths[struct.input]
        if operation.norm is not None:
            struct.norm_weight = self._pointer(self.tensors[operation.norm.weight])
            struct.norm_bias = self._pointer(self.tensors[operation.norm.bias])
            struct.epsilon = operation.norm.epsilon
            if operation.norm.output is not None:
                struct.norm_output = self._value(operation.norm.output, width)
        struct.inputs = width
        struct.activation = ACTIVATIONS[operation.activation]
        if operation.product is not None:
            assert operation.output is not None
            self._product(struct, operation.product)
            struct.output = self._value(operation.output, operation.product.outputs)

    def _product(self, struct: c.OperationStruct, product: ops.Product) -> None:
        matrices = (c.MatrixStruct * len(product.matrices))()
        for entry, matrix in zip(matrices, product.matrices, strict=True):
            entry.weight = self._pointer(self.tensors[matrix.weight], copied=True)
            entry.outputs = matrix.outputs
            if product.range is not None:
                assert matrix.scales is not None
                entry.scales = self._pointer(F(product.range.scale) * self.tensors[matrix.scales], copied=True)
            if matrix.bias is not None:
                entry.bias = self._pointer(self.tensors[matrix.bias], copied=True)
        self.read.append(matrices)
        struct.matrix = matrices
        struct.matrices = len(matrices)
        struct.inputs = product.inputs
        struct.outputs = product.outputs
        struct.range = _range(product.range)

    def _attention(self, struct: c.OperationStruct, operation: Attention) -> None:
        struct.input = self.numbers[operation.input]
        struct.heads = operation.heads
        struct.width = operation.width
        struct.key = _range(operation.key)
        struct.value = _range(operation.value)
        if not isinstance(operation, ops.AttendEncoder):
            struct.plane = operation.plane
        if isinstance(operation, ops.StoreSource):
            return
        struct.scale = operation.scale
        struct.output = self._value(operation.output, operation.heads * operation.width)
        struct.query = _range(operation.query)
        if operation.query is not None and operation.key is not None and operation.value is not None:
            unsigned, signed = sorted((operation.query, operation.key), key=lambda value_range: value_range.signed)
            struct.score_factor = F(unsigned.scale) * F(signed.scale * operation.scale)
            struct.value_factor = F(1 / 255) * F(operation.value.scale)

    def _value(self, name: str, width: int) -> int:
        """The number of a new value. Values of both lists have numbers of their own."""
        self.numbers[name] = len(self.widths)
        self.widths.append(width)
        return self.numbers[name]

    def _pointer(self, tensor: Tensor, *, copied: bool = False) -> int:
        """Where a tensor lies. copied: the level has its own copy once it is open."""
        contiguous = np.ascontiguousarray(tensor, np.int8 if tensor.dtype == np.int8 else F)
        (self.read if copied else self.kept).append(contiguous)
        return int(contiguous.ctypes.data)


def _range(value_range: ops.Range | None) -> c.RangeStruct:
    if value_range is None:
        return c.RangeStruct(0, 0, 0, 0.0)
    return c.RangeStruct(1, value_range.zero_point, int(value_range.signed), value_range.scale)


class NativeLevel:
    """A level, run by its program in C. Several threads may use it at once, each with batches of its own."""

    def __init__(
        self,
        library: ctypes.CDLL,
        program: Program,
        arch: Architecture,
        tensors: dict[str, Tensor],
        *,
        listed: bool = False,
    ) -> None:
        """tensors: by the names in the program, as `read_tensors` gives them. listed: each sentence has a list of
        tokens, which are all that there is for it. Raises ValueError for a program that the library does not run, and
        MemoryError."""
        self.library = library
        self.listed = listed
        self.program = program
        self.arch = arch
        self._handle: int | None = None
        lists = _Lists(program, arch, tensors)
        widths = (ctypes.c_int32 * len(lists.widths))(*lists.widths)
        struct = c.ProgramStruct(
            arch.vocab_size, arch.max_positions, arch.source_size, arch.pad_id, arch.eos_id, arch.decoder_start,
            listed, len(lists.widths), widths, len(lists.encode), len(lists.step), lists.encode, lists.step,
        )  # fmt: skip
        handle = ctypes.c_void_p()
        _check(library.hmc_open(ctypes.byref(struct), ctypes.byref(handle)), "open the level")
        self._handle = handle.value
        self._kept = lists.kept
        kept = {id(tensor): tensor.nbytes for tensor in lists.kept}
        self.bytes: int = library.hmc_level_bytes(handle) + sum(kept.values())
        """That the level holds in memory."""
        last = program.step[-1]
        assert isinstance(last, ops.TopCandidates)
        self.candidates = last
        self.attentions = [operation for operation in program.step if isinstance(operation, ops.AttendSource)]

    @classmethod
    def open(
        cls, library: ctypes.CDLL, bundle: Path, level: str, arch: Architecture, *, listed: bool = False
    ) -> NativeLevel:
        """Opens a level of a bundle that was validated. Raises InvalidArtifactError where it has no program."""
        program = read_program(bundle, level)
        return cls(library, program, arch, read_tensors(bundle, program), listed=listed)

    def rank(self, logits: Float32, count: int) -> tuple[Ints, Float32]:
        """What `best_tokens` and `log_sum_exp` of `hmc.engine.choosing` give for logits `[R, V]`: `[R, count]` and
        `[R]`."""
        read = np.ascontiguousarray(logits, F)
        rows, width = read.shape
        ids = np.empty((rows, count), np.int32)
        sums = np.empty(rows, F)
        result = self.library.hmc_rank(
            read.ctypes.data, rows, width, self.candidates.block, count, ids.ctypes.data, sums.ctypes.data
        )
        _check(result, "rank tokens")
        return ids.astype(np.int64), sums

    def exp(self, values: Float32) -> Float32:
        """What `hmc.engine.arithmetic.exp` gives."""
        results = np.array(values, F)
        self.library.hmc_exp(results.ctypes.data, results.size)
        return results

    def __del__(self) -> None:
        if self._handle:
            self.library.hmc_close(self._handle)
            self._handle = None


class SearchRules(Protocol):
    """When the search of a sentence ends, see `hmc.engine.decoding.state.Rules`."""

    @property
    def limit(self) -> int:
        """Most tokens, EOS included."""

    @property
    def min_length(self) -> int:
        """Fewest tokens, EOS included."""

    @property
    def length_penalty(self) -> float:
        """The exponent of the length by which log P is divided."""

    @property
    def enough(self) -> int | None:
        """Collected hypotheses that end the search; None: as many as there are rows, and none that runs is better."""


class Collected(NamedTuple):
    """What sentences have found that have ended: a number for each sentence, for each entry (as many of each sentence
    as were asked for, best first), or for each token of one entry after the other."""

    places: list[int]
    """Of each sentence in the batch, when the run began in which it ended."""
    failed: list[int]
    """Of each sentence: 1 where the model gave a number that is none."""
    ranks: list[float]
    """Of each entry: log P / length ** penalty."""
    lengths: list[int]
    """Tokens of each entry, with EOS if it is complete; 0 where there are no more hypotheses."""
    complete: list[int]
    """Of each entry: 1 where EOS ends it, 0 where it was cut off."""
    tokens: tuple[int, ...]
    scores: tuple[float, ...]
    """Log-probability of each token."""


class _Buffer:
    """Memory that C writes and reads, used again and again: to make an array for each call would take longer."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.array = np.empty(64, dtype)
        self.address = self.array.ctypes.data

    def room(self, count: int) -> int:
        """The address of memory for so many numbers. What was there is lost."""
        if count > len(self.array):
            self.array = np.empty(2 * count, self.array.dtype)
            self.address = self.array.ctypes.data
        return self.address

    def write(self, numbers: Sequence[Any]) -> int:
        """The address of these numbers; of tuples, where each is of several numbers."""
        address = self.room(len(numbers))
        self.array[: len(numbers)] = numbers
        return address

    def first(self, count: int) -> list[Any]:
        """The first numbers."""
        numbers: list[Any] = self.array[:count].tolist()
        return numbers


@lru_cache(maxsize=64)
def _powers(exponent: float, most: int) -> ctypes.Array[ctypes.c_double]:
    """n ** exponent of n from 0 to `most`; 1 for n = 0. Computed here, because `pow` differs between C libraries."""
    return (ctypes.c_double * (most + 1))(*[max(n, 1) ** exponent for n in range(most + 1)])


class NativeBatch:
    """Sentences that are decoded together. For one thread at a time."""

    def __init__(self, level: NativeLevel, rows: int, threads: int = 1) -> None:
        """rows: hypotheses of each sentence, 1 to 16. threads: 1 to 64, that divide each call among them; no result
        depends on their number."""
        self.level = level
        self.rows = rows
        self.count = 0
        self.sources: list[int] = []
        """Tokens of each sentence."""
        self.lists: list[int] = []
        """Tokens of each sentence's list, in a level with lists."""
        self._library = level.library
        self._numbers = _Buffer(np.int32)
        self._rules = _Buffer(np.dtype(c.RulesStruct))
        self._starts = _Buffer(np.int32)
        self._list_starts = _Buffer(np.int32)
        self._ranks = _Buffer(np.float64)
        self._tokens = _Buffer(np.int32)
        self._scores = _Buffer(np.float32)
        self._ended = (ctypes.c_int32 * 2)()
        """Sentences that the last run ended, and the most tokens of one of them."""
        self._ended_at = ctypes.addressof(self._ended)
        self._handle: int | None = None
        handle = ctypes.c_void_p()
        _check(self._library.hmc_batch_open(level._handle, rows, threads, ctypes.byref(handle)), "open a batch")
        self._handle = handle.value

    def close(self) -> None:
        """Gives the memory back."""
        if self._handle:
            self._library.hmc_batch_close(self._handle)
            self._handle = None

    __del__ = close

    def admit(self, sources: Sequence[Sequence[int]], rules: Sequence[SearchRules], lists: Sequence[Ints] = ()) -> None:
        """Encodes sentences, token ids with EOS, and appends them. lists: in a level with lists, the tokens of each
        sentence, ascending."""
        lengths = [len(source) for source in sources]
        tokens: list[int] = []
        for source in sources:
            tokens += source
        most = self.level.arch.max_positions
        powers = {exponent: _powers(exponent, most) for exponent in {rule.length_penalty for rule in rules}}
        addresses = {exponent: ctypes.addressof(array) for exponent, array in powers.items()}
        structs = [(rule.limit, rule.min_length, rule.enough or 0, addresses[rule.length_penalty]) for rule in rules]
        list_addresses: tuple[int | None, int | None] = (None, None)
        if lists:
            if len(lists) != len(sources):
                raise ValueError(f"{len(lists)} lists for {len(sources)} sentences")
            listed = np.concatenate(lists).astype(np.int32)
            list_addresses = self._list_starts.write([0, *accumulate(map(len, lists))]), listed.ctypes.data
        result = self._library.hmc_admit(
            self._handle, len(sources), self._starts.write([0, *accumulate(lengths)]), self._tokens.write(tokens),
            self._rules.write(structs), *list_addresses,
        )  # fmt: skip
        _check(result, "admit sentences")
        self.count += len(sources)
        self.sources += lengths
        self.lists += [len(tokens_of_list) for tokens_of_list in lists]

    def keep(self, order: Sequence[int]) -> None:
        """Sentence i becomes what sentence order[i] was; the others go."""
        count = len(order)
        _check(self._library.hmc_keep(self._handle, count, self._numbers.write(order)), "keep sentences")
        self.count = count
        self.sources = [self.sources[index] for index in order]
        if self.lists:
            self.lists = [self.lists[index] for index in order]

    def run(self, steps: int, wait_steps: int = 0, many: int = 1) -> int:
        """Runs up to so many steps. Sentences that end leave the batch; the others close up, in their order. Ends early
        when `many` have ended, when the first of them has waited for `wait_steps` further steps, and when none is left.
        Returns how many steps were run. Where `ended` is not 0 then, `collect` has to be called."""
        return _check(self._library.hmc_run(self._handle, steps, wait_steps, many, self._ended_at), "run")

    @property
    def ended(self) -> int:
        """Sentences that have ended, and were not collected."""
        return self._ended[0]

    def collect(self, hypotheses: int) -> Collected:
        """Takes what the sentences that have ended have found: up to so many hypotheses of each."""
        count = self._ended[0]
        entries = count * hypotheses
        room = entries * self._ended[1]
        places_at = self._numbers.room(2 * count + 2 * entries)
        failed_at = places_at + 4 * count
        lengths_at = failed_at + 4 * count
        complete_at = lengths_at + 4 * entries
        result = self._library.hmc_collect(
            self._handle, hypotheses, room, places_at, failed_at, self._ranks.room(entries), lengths_at, complete_at,
            self._tokens.room(room), self._scores.room(room),
        )  # fmt: skip
        _check(result, "collect")
        self._ended[0] = 0
        numbers = self._numbers.first(2 * count + 2 * entries)
        places = numbers[:count]
        failed = numbers[count : 2 * count]
        lengths = numbers[2 * count : 2 * count + entries]
        complete = numbers[2 * count + entries :]
        for gone in sorted(places, reverse=True):
            del self.sources[gone]
            if self.lists:
                del self.lists[gone]
        self.count -= count
        written = sum(lengths)
        tokens = tuple(self._tokens.first(written))
        scores = tuple(self._scores.first(written))
        return Collected(places, failed, self._ranks.first(entries), lengths, complete, tokens, scores)

    def step(self, tokens: npt.NDArray[Any], *, attention: bool = False) -> tuple[Float32, list[Float32]]:
        """One step whose search is the caller's. tokens `[R]`: the last of each row.

        Returns logits `[R, V]`, and for each cross-attention weights `[R, H, S]`, 0 behind the end of a source, in the
        order of the heads' numbers in the unpruned model. In a level with lists logits are `[R, L]`, L the longest
        list: of the tokens in the row's list, in their order, and −∞ behind its end."""
        read = np.ascontiguousarray(tokens, np.int32)
        rows = self.count * self.rows
        if read.shape != (rows,):
            raise ValueError(f"tokens {read.shape}: one for each of {rows} rows")
        logits = np.empty((rows, max(self.lists, default=self.level.arch.vocab_size)), F)
        longest = max(self.sources)
        heads = sum(operation.heads for operation in self.level.attentions) if attention else 0
        weights = np.zeros((rows * heads, longest), F)
        where = weights.ctypes.data if heads else None
        result = self._library.hmc_step(
            self._handle, read.ctypes.data, logits.ctypes.data, logits.shape[1], where, longest
        )
        _check(result, "step")
        by_layer = []
        first = 0
        for operation in self.level.attentions if heads else ():
            last = first + rows * operation.heads
            of_layer = weights[first:last].reshape(rows, operation.heads, longest)
            by_layer.append(of_layer[:, np.argsort(operation.original)] if operation.original else of_layer)
            first = last
        return logits, by_layer

    def reorder(self, parents: npt.NDArray[Any]) -> None:
        """Row r continues row parents[r] of the same sentence."""
        read = np.ascontiguousarray(parents, np.int32)
        _check(self._library.hmc_reorder(self._handle, read.ctypes.data), "reorder rows")

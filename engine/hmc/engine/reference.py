"""The reference executor: every operation of a step program in NumPy. It is slow, and says what the others compute.

Each sentence and each row is computed as if it were alone, so nothing depends on a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hmc.artifact.model.architecture import Architecture
from hmc.artifact.program.operations import (
    AttendEncoder,
    AttendSelf,
    AttendSource,
    Embed,
    FusedLinear,
    Product,
    Program,
    Range,
    StoreSource,
    TopCandidates,
    read_program,
)
from hmc.engine.arithmetic import (
    Float32,
    Int32,
    activate,
    dot,
    exact_dot,
    norm,
    quantise,
    softmax,
    weighted_sum,
)
from hmc.engine.tensors import Tensor, read_tensors, round_to

F = np.float32
Ints = npt.NDArray[np.int64]
WEIGHT_STEP = Range(scale=1 / 255)
"""To what attention weights are quantised over 8-bit keys and values."""
FIRST_PLACES = 32
"""Target positions for which there is room at first."""


@dataclass
class Source:
    """An encoded sentence: plane → keys and values `[H, S, D]`, floats or integers of 8 bits."""

    length: int
    """S, EOS counted."""
    listed: Ints | None = None
    """The tokens of its shortlist, ascending: all that there is for it. None: the whole vocabulary."""
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)


class OwnCaches:
    """Keys and values of the target so far: plane → `[R, H, T, D]`. Row r has read `positions[r]` tokens."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def take(self, rows: Ints) -> None:
        """Row r becomes the former row rows[r]."""
        for planes in (self.keys, self.values):
            for plane, cache in planes.items():
                planes[plane] = cache[rows]

    def add(self, rows: int) -> None:
        """Appends rows that have read nothing."""
        for planes in (self.keys, self.values):
            for plane, cache in planes.items():
                planes[plane] = np.concatenate([cache, np.zeros((rows, *cache.shape[1:]), cache.dtype)])

    def write(self, plane: int, positions: Ints, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Writes each row's new key and value `[R, H, D]` to its position. Returns the plane's keys and values."""
        every = np.arange(len(positions))
        for planes, new in ((self.keys, keys), (self.values, values)):
            rows, heads, width = new.shape
            cache = planes.setdefault(plane, np.zeros((rows, heads, FIRST_PLACES, width), new.dtype))
            missing = int(positions.max()) + 1 - cache.shape[2]
            if missing > 0:
                room = np.zeros((rows, heads, max(missing, cache.shape[2]), width), new.dtype)
                cache = planes[plane] = np.concatenate([cache, room], axis=2)
            cache[every, :, positions] = new
        return self.keys[plane], self.values[plane]


@dataclass
class Step:
    """The results of a step for its R rows."""

    logits: Float32
    """`[R, V]`. With shortlists `[R, L]`, L the longest list: of the tokens in the row's list, in their order, and −∞
    behind its end."""
    attention: dict[int, list[Float32]] = field(default_factory=dict)
    """Decoder layer → attention weights over the source, `[H, S]` for each row. Heads are in the order of their numbers
    in the unpruned model."""


class ReferenceLevel:
    """A level, run by its program."""

    def __init__(self, program: Program, arch: Architecture, tensors: dict[str, Tensor]) -> None:
        """tensors: by the names in the program, as `read_tensors` gives them."""
        self.program = program
        self.arch = arch
        self.tensors = tensors

    @classmethod
    def open(cls, bundle: Path, level: str, arch: Architecture) -> ReferenceLevel:
        """Opens a level of a bundle that was validated. Raises InvalidArtifactError if the level has no program."""
        program = read_program(bundle, level)
        return cls(program, arch, read_tensors(bundle, program))

    # ---- the two lists ----

    def encode(self, source: Sequence[int], listed: Ints | None = None) -> Source:
        """Encodes one sentence: token ids, EOS last. listed: see `Source`."""
        values: dict[str, Float32] = {}
        encoded = Source(len(source), listed)
        for operation in self.program.encode:
            if isinstance(operation, Embed):
                values[operation.output] = self._embed(operation, np.array(source), np.arange(len(source)))
            elif isinstance(operation, FusedLinear):
                self._linear(operation, values)
            elif isinstance(operation, AttendEncoder):
                values[operation.output] = self._attend_encoder(operation, values[operation.input])
            elif isinstance(operation, StoreSource):
                keys, kept = _by_head(values[operation.input], 2, operation.heads)
                encoded.keys[operation.plane] = _kept(keys, operation.key)
                encoded.values[operation.plane] = _kept(kept, operation.value)
        return encoded

    def step(self, tokens: Ints, positions: Ints, own: OwnCaches, sources: Sequence[Source]) -> Step:
        """One token of R rows. tokens `[R]`: the last of each; positions `[R]`: how many tokens each row has read
        before; sources: of each row. The new keys and values are written to `own`."""
        values: dict[str, Float32] = {}
        attention: dict[int, list[Float32]] = {}
        for operation in self.program.step:
            if isinstance(operation, Embed):
                values[operation.output] = self._embed(operation, tokens, positions)
            elif isinstance(operation, FusedLinear):
                self._linear(operation, values)
            elif isinstance(operation, AttendSelf):
                values[operation.output] = self._attend_self(operation, values[operation.input], positions, own)
            elif isinstance(operation, AttendSource):
                result, weights = self._attend_source(operation, values[operation.input], sources)
                values[operation.output] = result
                attention[operation.layer] = weights
            elif isinstance(operation, TopCandidates):
                logits = self._product(operation.product, values[operation.input])
                return Step(_listed_logits(logits, [source.listed for source in sources]), attention)
        raise AssertionError("a step program ends with candidates")

    @property
    def candidates(self) -> TopCandidates:
        """The last operation of a step."""
        last = self.program.step[-1]
        assert isinstance(last, TopCandidates)
        return last

    # ---- operations ----

    def _embed(self, operation: Embed, tokens: Ints, positions: Ints) -> Float32:
        rows = self.tensors[operation.table][tokens].astype(F)
        factor = self.tensors[operation.scales][tokens] if operation.scales else F(operation.factor)
        return self._stored(self._stored(rows * factor) + self.tensors[operation.positions][positions])

    def _linear(self, operation: FusedLinear, values: dict[str, Float32]) -> None:
        if operation.sum is not None:
            value = values[operation.sum.residual]
            if operation.sum.parts is not None:
                added = values[operation.sum.parts]
                if operation.sum.bias is not None:
                    added = added + self.tensors[operation.sum.bias]
                value = added + value
            elif operation.sum.bias is not None:
                value = value + self.tensors[operation.sum.bias]
            if operation.sum.output is not None:
                value = values[operation.sum.output] = self._stored(value)
        else:
            assert operation.input is not None
            value = values[operation.input]
        if operation.norm is not None:
            weight = self.tensors[operation.norm.weight]
            bias = self.tensors[operation.norm.bias]
            value = self._stored(norm(value, weight, bias, operation.norm.epsilon))
            if operation.norm.output is not None:
                values[operation.norm.output] = value
        if operation.product is not None:
            assert operation.output is not None
            result = activate(self._product(operation.product, value), operation.activation)
            values[operation.output] = self._stored(result)

    def _product(self, product: Product, value: Float32) -> Float32:
        """x Wᵀ + b of every matrix, side by side."""
        results = []
        for matrix in product.matrices:
            weight = self.tensors[matrix.weight]
            if product.range is None:
                result = dot(value, weight)
            else:
                assert matrix.scales is not None
                steps = quantise(value, product.range) - np.int32(product.range.zero_point)
                scales = F(product.range.scale) * self.tensors[matrix.scales]
                result = exact_dot(steps, weight).astype(F) * scales
                result[np.isnan(value).any(axis=1)] = F(np.nan)
            if matrix.bias is not None:
                result = result + self.tensors[matrix.bias]
            results.append(result)
        return np.concatenate(results, axis=1)

    def _attend_encoder(self, operation: AttendEncoder, value: Float32) -> Float32:
        queries, keys, kept = _by_head(value, 3, operation.heads)  # [H, S, D] each
        scores = np.stack([dot(query, key) for query, key in zip(queries, keys, strict=True)]) * F(operation.scale)
        weights = softmax(scores)  # [H, S, S]
        result = np.stack([weighted_sum(w, v[None]) for w, v in zip(weights, kept, strict=True)])
        return self._stored(_joined(result))

    def _attend_self(self, operation: AttendSelf, value: Float32, positions: Ints, own: OwnCaches) -> Float32:
        queries, new_keys, new_values = _by_head(value, 3, operation.heads)  # [H, R, D] each
        keys, kept = own.write(
            operation.plane,
            positions,
            _kept(new_keys.transpose(1, 0, 2), operation.key),
            _kept(new_values.transpose(1, 0, 2), operation.value),
        )
        result = np.empty((operation.heads, len(value), operation.width), F)
        for row, position in enumerate(positions.tolist()):
            seen = slice(position + 1)
            result[:, row], _ = _attend(operation, queries[:, row], keys[row, :, seen], kept[row, :, seen])
        joined = _joined(result)
        joined[np.isnan(value).any(axis=1)] = F(np.nan)
        return self._stored(joined)

    def _attend_source(
        self, operation: AttendSource, value: Float32, sources: Sequence[Source]
    ) -> tuple[Float32, list[Float32]]:
        (queries,) = _by_head(value, 1, operation.heads)  # [H, R, D]
        result = np.empty((operation.heads, len(value), operation.width), F)
        weights = []
        for row, source in enumerate(sources):
            keys = source.keys[operation.plane]
            kept = source.values[operation.plane]
            result[:, row], seen = _attend(operation, queries[:, row], keys, kept)
            weights.append(seen[np.argsort(operation.original)] if operation.original else seen)
        joined = _joined(result)
        joined[np.isnan(value).any(axis=1)] = F(np.nan)
        return self._stored(joined), weights

    def _stored(self, values: Float32) -> Float32:
        """In the program's type."""
        return round_to(values, self.program.type)


def _listed_logits(logits: Float32, lists: Sequence[Ints | None]) -> Float32:
    """Logits `[R, V]` of the tokens in each row's list, see `Step`. A column of a product depends on no other."""
    own = [listed for listed in lists if listed is not None]
    if not own:
        return logits
    listed_logits = np.full((len(own), max(map(len, own))), F(-np.inf))
    for row, listed in enumerate(own):
        listed_logits[row, : len(listed)] = logits[row, listed]
    return listed_logits


def _by_head(value: Float32, parts: int, heads: int) -> list[Float32]:
    """`[R, parts · H · D]` → that many of `[H, R, D]`."""
    split = value.reshape(len(value), parts, heads, -1)
    return [split[:, part].transpose(1, 0, 2) for part in range(parts)]


def _joined(result: Float32) -> Float32:
    """`[H, R, D]` → `[R, H · D]`."""
    return np.ascontiguousarray(result.transpose(1, 0, 2)).reshape(result.shape[1], -1)


def _kept(values: Float32, to: Range | None) -> Tensor:
    """Keys or values as the cache has them: floats, or integers less their zero point."""
    return values if to is None else quantise(values, to) - np.int32(to.zero_point)


def _attend(
    operation: AttendSelf | AttendSource, query: Float32, keys: Tensor, values: Tensor
) -> tuple[Float32, Float32]:
    """One row: query `[H, D]`, keys and values `[H, n, D]` → the result `[H, D]` and the weights `[H, n]`."""
    if operation.query is None or operation.key is None or operation.value is None:
        scores = np.concatenate([dot(q[None], key) for q, key in zip(query, keys, strict=True)])
        weights = softmax(scores * F(operation.scale))
        return weighted_sum(weights, values), weights
    steps: Int32 = quantise(query, operation.query) - np.int32(operation.query.zero_point)
    products = (keys.astype(np.int64) * steps[:, None].astype(np.int64)).sum(axis=-1)
    unsigned, signed = sorted((operation.query, operation.key), key=lambda value_range: value_range.signed)
    factor = F(unsigned.scale) * F(signed.scale * operation.scale)
    weights = softmax(products.astype(F) * factor)
    shares = quantise(weights, WEIGHT_STEP)
    total = (values.astype(np.int64) * shares[..., None].astype(np.int64)).sum(axis=1)
    return total.astype(F) * (F(WEIGHT_STEP.scale) * F(operation.value.scale)), weights

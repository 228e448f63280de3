"""Writes the step program of a level: the operations of its layers, in order, and where their tensors lie.

The weights are those of the graphs, stacked and quantised alike, so that both read the same files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.model.architecture import LOGITS_BIAS, TARGET_EMBEDDING, Architecture
from hmc.artifact.model.ffn import Stack
from hmc.artifact.model.heads import AttentionKind, HeadLayout, HeadOrder
from hmc.artifact.model.layers import EPSILON, AttentionSpec, FeedForwardSpec, LinearSpec, NormSpec
from hmc.artifact.program.operations import (
    AttendEncoder,
    AttendSelf,
    AttendSource,
    ElementType,
    Embed,
    FusedLinear,
    Matrix,
    Norm,
    Operation,
    Product,
    Program,
    Range,
    StoreSource,
    Sum,
    TensorPlace,
    TopCandidates,
    program_json,
    program_path,
    program_tensors_path,
)
from hmc.compiler.derived import Array, stack
from hmc.compiler.graph import as_type
from hmc.compiler.graphs.blocks import joint_name, present_layers
from hmc.compiler.precisions.int8 import quantize_columns, rows_of, transpose
from hmc.compiler.precisions.linears import Linears
from hmc.compiler.precisions.ranges import ActivationRange
from hmc.compiler.serialize import INLINE_BYTES, BundleFolder

ALIGNMENT = 64
"""Tensors in the file of small ones begin at multiples of this many bytes."""


@dataclass(frozen=True)
class Stored:
    """A tensor of a program. A graph may store several of them as one tensor; this is a part of its outputs."""

    whole: Array
    outputs: slice | None = None
    """Along the last axis of integers `[inputs, outputs]`, and along the first of everything else. None: all."""

    @property
    def array(self) -> Array:
        """The tensor."""
        if self.outputs is None:
            return self.whole
        part: Array = self.whole[:, self.outputs] if self._columns else self.whole[self.outputs]
        return part

    @property
    def offset(self) -> int:
        """Offset of its first element in the whole tensor, in bytes."""
        return 0 if self.outputs is None else self.outputs.start * self.whole.strides[int(self._columns)]

    @property
    def leading(self) -> int | None:
        """As `TensorPlace` has it."""
        return self.whole.shape[1] if self._columns and self.array.shape != self.whole.shape else None

    @property
    def _columns(self) -> bool:
        return self.whole.dtype == np.int8


@dataclass
class ProgramWriter:
    """One program being written."""

    arch: Architecture
    layout: HeadLayout
    tensors: Tensors
    linears: Linears
    """Of the decoder."""
    encoder_linears: Linears
    shortlist: bool = False
    order: HeadOrder | None = None
    """In which the tensors have the heads; None: by their numbers."""
    stored: dict[str, Stored] = field(default_factory=dict)
    """Name → tensor, of all that the operations name."""
    _operations: list[Operation] = field(default_factory=list)
    _state: str = ""
    """Name of the states that the next sub-layer continues."""
    _pending: tuple[Sum, NormSpec | None] | None = None
    """What is still to be added to the states, and the norm after it: the next operation does that first."""
    _states: int = 0

    def write(self) -> tuple[list[Operation], list[Operation]]:
        """The operations of `encode` and of `step`."""
        encode = self._encode()
        return encode, self._step()

    # ---- the two lists ----

    def _encode(self) -> list[Operation]:
        arch = self.arch
        linears = self.encoder_linears
        self._begin()
        self._embed(linears, arch.source_embedding)
        for layer in present_layers(arch, "encoder", self.tensors):
            attention = arch.attention("encoder_self", layer)
            open_heads = len(self.layout.encoder_self[layer])
            if open_heads:
                product = self._product(linears, *attention.inputs, joint=False)
                qkv = self._linear(product, f"encoder.{layer}.qkv", attention.norm)
                output = f"encoder.{layer}.heads"
                scale = arch.head_dim**-0.5
                self._add(
                    AttendEncoder(
                        input=qkv, heads=open_heads, width=arch.head_dim,
                        original=self._head_numbers("encoder_self", layer), scale=scale, output=output,
                    )
                )  # fmt: skip
                self._end_attention(linears, attention, output)
            else:
                self._close_attention(attention)
            self._feed_forward(linears, "encoder", layer)
        memory = self._end_stack("encoder")
        plane = 0
        for layer, row in enumerate(self.layout.cross):
            if not row:
                continue
            attention = arch.attention("cross", layer)
            product = self._product(linears, attention.key, attention.value, joint=False)
            output = f"cross.{layer}.kv"
            self._add(FusedLinear(input=memory, product=product, output=output))
            _, key, value = self._attention_ranges(attention)
            self._add(
                StoreSource(
                    input=output, plane=plane, heads=len(row), width=arch.head_dim, key=key, value=value
                )
            )  # fmt: skip
            plane += 1
        return self._operations

    def _step(self) -> list[Operation]:
        arch = self.arch
        linears = self.linears
        self._begin()
        self._embed(linears, TARGET_EMBEDDING)
        own = 0
        source = 0
        for layer in present_layers(arch, "decoder", self.tensors):
            attention = arch.attention("decoder_self", layer)
            open_heads = len(self.layout.decoder_self[layer])
            if open_heads:
                qkv = self._linear(self._product(linears, *attention.inputs), f"{layer}.qkv", attention.norm)
                query, key, value = self._attention_ranges(attention)
                self._add(
                    AttendSelf(
                        input=qkv, heads=open_heads, width=arch.head_dim,
                        original=self._head_numbers("decoder_self", layer), scale=arch.head_dim**-0.5,
                        query=query, key=key, value=value, plane=own, output=f"{layer}.heads",
                    )
                )  # fmt: skip
                own += 1
                self._end_attention(linears, attention, f"{layer}.heads")
            else:
                self._close_attention(attention)
            attention = arch.attention("cross", layer)
            open_heads = len(self.layout.cross[layer])
            if open_heads:
                q = self._linear(self._product(linears, attention.query), f"{layer}.q", attention.norm)
                query, key, value = self._attention_ranges(attention)
                self._add(
                    AttendSource(
                        input=q, heads=open_heads, width=arch.head_dim, original=self._head_numbers("cross", layer),
                        scale=arch.head_dim**-0.5, query=query, key=key, value=value, plane=source, layer=layer,
                        output=f"{layer}.source",
                    )
                )  # fmt: skip
                source += 1
                self._end_attention(linears, attention, f"{layer}.source")
            else:
                self._close_attention(attention)
            self._feed_forward(linears, "decoder", layer)
        last = self._end_stack("decoder")
        name = arch.output_layer
        weight = self.tensors[arch.output_projection]
        bias = self.tensors[LOGITS_BIAS].reshape(-1)
        input_range = linears.range_of(name)
        matrix = self._matrix(linears, name, weight, bias, slice(0, len(weight)), activations=input_range)
        product = Product(inputs=arch.d_model, matrices=(matrix,), range=_range(input_range))
        self._add(TopCandidates(input=last, product=product, shortlist=self.shortlist))
        return self._operations

    # ---- sub-layers ----

    def _head_numbers(self, kind: AttentionKind, layer: int) -> tuple[int, ...]:
        """The heads of a layer, in the order in which the tensors have them."""
        return tuple((self.order or self.layout)[kind][layer])

    def _begin(self) -> None:
        self._operations = []
        self._pending = None
        self._states = 0

    def _embed(self, linears: Linears, table: str) -> None:
        arch = self.arch
        factor = float(np.sqrt(arch.d_model)) if arch.scale_embedding else 1.0
        self._state = self._next_state()
        positions = self._tensor("positions", as_type(arch.positions(), linears.dtype))
        if linears.quantises_embedding:
            integers, scales = linears.derived.get(quantize_columns, self.tensors[table])
            name = self._tensor(rows_of(table), linears.derived.get(transpose, integers))
            scale = self._tensor(f"{rows_of(table)}_scale", (scales * np.float32(factor))[:, None])
            embed = Embed(table=name, scales=scale, factor=factor, positions=positions, output=self._state)
        else:
            name = self._tensor(table, self._typed(linears, self.tensors[table]))
            embed = Embed(table=name, factor=factor, positions=positions, output=self._state)
        self._add(embed)

    def _end_attention(self, linears: Linears, attention: AttentionSpec, results: str) -> None:
        """The heads' results times W_O; its bias, the residual and the norm are left to the next operation."""
        self._end_product(linears, results, attention.output, attention.norm)

    def _close_attention(self, attention: AttentionSpec) -> None:
        """A layer with no open head: LayerNorm(x + W_O's bias) (Voita et al. 2019, footnote 9)."""
        self._flush()
        self._leave(Sum(bias=self._vector(attention.output.bias), residual=self._state), attention.norm)

    def _feed_forward(self, linears: Linears, stack_name: Stack, layer: int) -> None:
        feed: FeedForwardSpec = self.arch.feed_forward(stack_name, layer)
        if feed.output.weight not in self.tensors:
            self._flush()
            self._leave(Sum(bias=self._vector(feed.output.bias), residual=self._state), feed.norm)
            return
        prefix = f"{stack_name}." if stack_name == "encoder" else ""
        product = self._product(linears, *feed.inputs)
        inner = self._linear(product, f"{prefix}{layer}.neurons", feed.norm, activation=True)
        self._end_product(linears, inner, feed.output, feed.norm)

    def _end_product(self, linears: Linears, value: str, layer: LinearSpec, norm: NormSpec) -> None:
        weight = self.tensors[layer.weight]
        input_range = linears.range_of(layer.name)
        matrix = self._matrix(linears, layer.name, weight, None, slice(0, len(weight)), activations=input_range)
        product = Product(inputs=weight.shape[1], matrices=(matrix,), range=_range(input_range))
        output = f"{value}.out"
        self._add(FusedLinear(input=value, product=product, output=output))
        self._leave(Sum(parts=output, bias=self._vector(layer.bias), residual=self._state), norm)

    def _end_stack(self, name: Stack) -> str:
        """The states after the last layer; returns their name."""
        norm = self.arch.stack_norm(name)
        if norm is None:
            self._flush()
            return self._state
        if self._pending is not None and self._pending[1] is not None:
            self._flush()
        last = f"{name}.end"
        self._add(self._entry(None).model_copy(update={"norm": self._norm(norm, last)}))
        return last

    # ---- states ----

    def _leave(self, added: Sum, norm: NormSpec) -> None:
        """Leaves a sum to the next operation, with the norm after it where norms come last."""
        assert self._pending is None
        self._pending = (added, None if self.arch.pre_norm else norm)

    def _entry(self, norm: NormSpec | None) -> FusedLinear:
        """How the next operation begins: what it reads, with what was left to it. norm: of the sub-layer, which is
        read through it where norms come first."""
        first = self._norm(norm, None) if norm is not None and self.arch.pre_norm else None
        if self._pending is None:
            return FusedLinear(input=self._state, norm=first)
        added, after = self._pending
        self._pending = None
        self._state = self._next_state()
        if after is not None:
            return FusedLinear(sum=added, norm=self._norm(after, self._state))
        return FusedLinear(sum=added.model_copy(update={"output": self._state}), norm=first)

    def _flush(self) -> None:
        """Does what is left, in an operation of its own."""
        if self._pending is not None:
            self._add(self._entry(None))

    def _linear(self, product: Product, output: str, norm: NormSpec, *, activation: bool = False) -> str:
        """A product of the states, which a sub-layer begins with. Returns the name of its result."""
        kind = self.arch.activation if activation else None
        self._add(self._entry(norm).model_copy(update={"product": product, "activation": kind, "output": output}))
        return output

    def _next_state(self) -> str:
        self._states += 1
        return f"x{self._states - 1}"

    def _add(self, operation: Operation) -> None:
        self._operations.append(operation)

    # ---- tensors ----

    def _product(self, linears: Linears, *layers: LinearSpec, joint: bool = True) -> Product:
        """Linear layers of one input. joint: whether the decoder's graphs have them as one matrix, stacked along their
        outputs, of which each has a part; the encoder's have a matrix for each in integers."""
        name = joint_name(*layers)
        input_range = linears.range_of(name)
        groups = [layers] if joint or input_range is None else [(layer,) for layer in layers]
        matrices = []
        for group in groups:
            weight = linears.derived.get(stack, *(self.tensors[layer.weight] for layer in group))
            bias = linears.derived.get(stack, *(self.tensors[layer.bias] for layer in group))
            start = 0
            for layer in group:
                outputs = slice(start, start + len(self.tensors[layer.weight]))
                matrices.append(self._matrix(linears, layer.name, weight, bias, outputs, activations=input_range))
                start = outputs.stop
        inputs = self.tensors[layers[0].weight].shape[1]
        return Product(inputs=inputs, matrices=tuple(matrices), range=_range(input_range))

    def _matrix(
        self,
        linears: Linears,
        name: str,
        weight: Array,
        bias: Array | None,
        outputs: slice,
        *,
        activations: ActivationRange | None,
    ) -> Matrix:
        """These outputs of a weight `[out, in]` and its bias `[out]`. activations: the input's range; None: fp32."""
        count = outputs.stop - outputs.start
        offset = None if bias is None else self._tensor(f"{name}.bias", self._typed(linears, bias), outputs)
        if activations is None:
            stored = self._tensor(f"{name}.weight", self._typed(linears, weight), outputs)
            return Matrix(weight=stored, bias=offset, outputs=count)
        integers, scales = linears.derived.get(quantize_columns, weight)
        return Matrix(
            weight=self._tensor(f"{name}.weight", integers, outputs),
            scales=self._tensor(f"{name}.weight_scale", scales, outputs),
            bias=offset,
            outputs=count,
        )

    def _attention_ranges(self, attention: AttentionSpec) -> tuple[Range | None, Range | None, Range | None]:
        """Of queries, keys and values. Integer products have one unsigned side: keys of target positions, and queries
        to the source (decision 11)."""
        ranges = [self.linears.range_of(f"{attention.name}.{part}") for part in ("query", "key", "value")]
        query, key, value = ranges
        if query is None or key is None or value is None:
            return None, None, None
        if attention.kind == "cross":
            return _range(query), _signed(key), _signed(value)
        return _signed(query), _range(key), _signed(value)

    def _vector(self, name: str) -> str:
        return self._tensor(name, as_type(self.tensors[name], self.linears.dtype))

    def _norm(self, norm: NormSpec, output: str | None) -> Norm:
        return Norm(weight=self._vector(norm.weight), bias=self._vector(norm.bias), epsilon=EPSILON, output=output)

    def _typed(self, linears: Linears, array: Array) -> Array:
        """In the type of activations."""
        return np.asarray(linears.derived.get(as_type, array, dtype=linears.dtype))

    def _tensor(self, name: str, whole: Array, outputs: slice | None = None) -> str:
        """Names these outputs of what a graph stores as one tensor."""
        asked = Stored(whole, outputs)
        known = self.stored.setdefault(name, asked)
        one = known.array
        other = asked.array
        if known.whole is not whole and not (one.dtype == other.dtype and np.array_equal(one, other)):
            raise ValueError(f"program: the tensor {name!r} already exists with other numbers")
        return name


def _range(activations: ActivationRange | None) -> Range | None:
    return None if activations is None else Range(scale=activations.scale, zero_point=activations.zero_point)


def _signed(activations: ActivationRange) -> Range:
    return Range(scale=activations.symmetric_scale, signed=True)


def write_program(writer: ProgramWriter, folder: BundleFolder, level: str) -> dict[str, str]:
    """Writes a level's program and its tensors. Returns path within the bundle → sha256, of all files that it reads."""
    encode, step = writer.write()
    files: dict[str, str] = {}
    places: dict[str, TensorPlace] = {}
    small = bytearray()
    for name, stored in writer.stored.items():
        array = stored.array
        kind: ElementType = str(array.dtype)  # type: ignore[assignment]
        leading = None
        if stored.whole.nbytes > INLINE_BYTES:
            location = folder.write_weight(stored.whole, files)
            offset = stored.offset
            leading = stored.leading
        else:
            location = program_tensors_path(level)
            small += bytes(-len(small) % ALIGNMENT)
            offset = len(small)
            small += array.tobytes()
        places[name] = TensorPlace(file=location, offset=offset, shape=array.shape, type=kind, leading=leading)
    activations: Literal["float32", "float16", "bfloat16"] = writer.linears.dtype  # type: ignore[assignment]
    program = Program(type=activations, tensors=places, encode=tuple(encode), step=tuple(step))
    files |= folder.write_file(program_path(level), program_json(program))
    return files | folder.write_file(program_tensors_path(level), bytes(small))

"""The state of a search on the device: as it comes in, as it begins for new sentences, as it goes out.

A captured CUDA graph runs every node as a kernel, so nodes count. Views (Reshape, Unsqueeze) and whatever computes with
shapes alone cost nothing there. Two limits of ONNX Runtime's CUDA kernels decide on the form:

- TopK fills up to a power of two with the lowest finite number, which beats -inf. So nothing that it ranks is -inf or
  NaN: `NEVER` stands for -inf. Ties go to the lower index, as on a CPU.
- A value on the host cannot be an operand. `SearchOps.counted` makes numbers on the device from sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from hmc.artifact.model.architecture import Architecture
from hmc.compiler.graph import DTYPES, GraphBuilder, as_type

NEVER = -1e300
"""Stands for a total of -inf where totals are ranked."""
UNRANKED = -1e200
"""Ranks below this are those of no hypothesis: NEVER / length ** penalty is lower for every length and penalty."""
MOST_ROWS = 128
"""The most rows of a sentence that a graph can run: an initializer is as long."""
STATE = {
    "lengths": "int32", "done": "int32", "tokens": "int32", "totals": "float64",
    "ended_ranks": "float64", "ended_totals": "float64", "ended_lengths": "int32", "ended_rows": "int32",
    "ended_complete": "int32", "ended_finals": "float32",
    "history_tokens": "int32", "history_parents": "int32", "history_scores": "float32",
}  # fmt: skip
"""Inputs with an output `next_NAME` → element type."""
BY_SENTENCE = ("lengths", "done")
ALWAYS = -(2**30)
AT_MINIMUM = -1
NOT = 2**30


class SearchOps:
    """Writes nodes of a search over B sentences of k rows."""

    def __init__(self, g: GraphBuilder, state: ir.Value) -> None:
        """state: any value `[B, k]`; its shape says what B and k are."""
        self.g = g
        self.shape = g.op("Shape", [state])
        """`[2]` int64, on the host: B, k."""
        self.k = g.op("Shape", [state], start=1)

    def do(self, kind: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """One node of one output."""
        value: ir.Value = self.g.op(kind, list(inputs), **attributes)
        return value

    def constant(self, value: float, dtype: str) -> ir.Value:
        """A scalar."""
        name = f"search.{dtype}.{value:g}"
        return self.g.weight(name, as_type(np.asarray(value, np.float64), dtype))

    def cast(self, value: ir.Value, dtype: str) -> ir.Value:
        """In another element type; "bool" too."""
        return self.do("Cast", value, to=int(ir.DataType.BOOL if dtype == "bool" else DTYPES[dtype]))

    def column(self, value: ir.Value) -> ir.Value:
        """`[B]` → `[B, 1]`, a view."""
        return self.do("Unsqueeze", value, self.g.ints(1))

    def flat(self, value: ir.Value) -> ir.Value:
        """`[B, 1]` → `[B]`, a view."""
        return self.do("Squeeze", value, self.g.ints(1))

    def first(self, value: ir.Value, count: ir.Value | None = None) -> ir.Value:
        """`[B, n]` → its first `count` columns, or its first one."""
        return self.do("Slice", value, self.g.ints(0), count or self.g.ints(1), self.g.ints(1))

    def pick(self, value: ir.Value, index: ir.Value) -> ir.Value:
        """value `[B, n]`, index `[B, m]` → `[B, m]`."""
        return self.do("GatherElements", value, index, axis=1)

    def counted(self, end: ir.Value, start: ir.Value | None = None) -> ir.Value:
        """The int64 numbers from `start`, or 0, up to `end`, on the device. Both are `[1]` int64 on the host."""
        scalars = [self.do("Squeeze", v, self.g.ints(0)) for v in (start, end) if v is not None]
        zero, one = (self.g.weight(f"const.scalar_{n}", np.asarray(n, np.int64)) for n in (0, 1))
        return self.do("Range", *([zero] if start is None else []), *scalars, one)


@dataclass
class SearchState:
    """The state at the beginning of a step. Sentences that are `fresh` have written nothing."""

    ops: SearchOps
    fresh: ir.Value
    """`[B, 1]` bool."""
    lengths: ir.Value
    """`[B]` int32."""
    done: ir.Value
    """`[B]` int32."""
    tokens: ir.Value
    """`[B, k]` int32."""
    totals: ir.Value
    """`[B, k]` float64; -inf: the row does not run."""
    limits: ir.Value
    """`[B, 1]` int32."""
    minimums: ir.Value
    """`[B, 1]` int32."""
    penalties: ir.Value
    """`[B, 1]` float64."""
    kept: dict[str, ir.Value]
    """The inputs `ended_…` and `history_…`; `ended_ranks` without those of earlier sentences."""

    @classmethod
    def begin(cls, g: GraphBuilder, start_id: int, *, rows: int | str) -> SearchState:
        """Declares the inputs, and the output `next_fresh`. rows: 1 or "k"."""
        inputs = {name: g.input(name, dtype, shape_of(name, rows)) for name, dtype in STATE.items()}
        limits, minimums, fresh = (g.input(name, "int32", ["B"]) for name in ("limits", "minimums", "fresh"))
        penalties = g.input("penalties", "float64", ["B"])
        ops = SearchOps(g, inputs["tokens"])
        new = ops.cast(fresh, "bool")  # the only reader of `fresh`, so `next_fresh` may have its memory
        zero = ops.constant(0, "int32")
        column = ops.column(new)
        g.output(ops.do("Where", new, zero, zero), "next_fresh", "int32", ["B"])
        start = ops.constant(0, "float64")
        if rows != 1:  # a new sentence's rows are equal, so only the first of them runs
            only_first = np.full(MOST_ROWS, -np.inf)
            only_first[0] = 0
            start = ops.do("Slice", g.weight("search.only_first", only_first), g.ints(0), ops.k)
        tokens = ops.do("Where", column, ops.constant(start_id, "int32"), inputs["tokens"])
        tokens.shape = ir.Shape(["B", rows])
        tokens.type = ir.TensorType(DTYPES["int32"])
        kept = {name: value for name, value in inputs.items() if name.startswith(("ended_", "history_"))}
        kept["ended_ranks"] = ops.do("Where", column, ops.constant(-np.inf, "float64"), kept["ended_ranks"])
        return cls(
            ops=ops,
            fresh=column,
            lengths=ops.do("Where", new, zero, inputs["lengths"]),
            done=ops.do("Where", new, zero, inputs["done"]),
            tokens=tokens,
            totals=ops.do("Where", column, start, inputs["totals"]),
            limits=ops.column(limits),
            minimums=ops.column(minimums),
            penalties=ops.column(penalties),
            kept=kept,
        )

    def end(self, name: str, value: ir.Value, *, rows: int | str) -> None:
        """Declares the output `next_NAME`."""
        self.ops.g.output(value, f"next_{name}", STATE[name], shape_of(name, rows))

    def write_history(self, tokens: ir.Value, parents: ir.Value, scores: ir.Value, *, rows: int | str) -> None:
        """Writes entry `lengths` of each sentence: tokens and parents `[B, k]` int32, scores `[B, k]` fp32.

        A sentence that has ended writes again after its last entry; this place is never read.
        """
        ops = self.ops
        axis = ops.g.ints(1)
        at = ops.do("Expand", ops.cast(ops.column(self.lengths), "int64"), ops.shape)
        at = ops.do("Unsqueeze", at, axis)
        for name, new in (("tokens", tokens), ("parents", parents), ("scores", scores)):
            old = self.kept[f"history_{name}"]
            written = ops.do("ScatterElements", old, at, ops.do("Unsqueeze", new, axis), axis=1)
            self.end(f"history_{name}", written, rows=rows)


def shape_of(name: str, rows: int | str) -> list[int | str]:
    """Dimensions of a part of the state."""
    if name in BY_SENTENCE:
        return ["B"]
    return ["B", "P", rows] if name.startswith("history_") else ["B", rows]


def allowed_tokens(state: SearchState, arch: Architecture, ids: ir.Value, *, by_row: bool = True) -> ir.Value:
    """ids `[B, k, K]` int64, or `[B, K]` if not `by_row` → bool: false for pad, and for EOS while a sentence is too
    short to end.

    A token may follow where its number in a table is at most length - minimum: always, from -1 on, or never.
    """
    ops = state.ops
    table = np.full(arch.vocab_size, ALWAYS, np.int32)
    table[arch.eos_id] = AT_MINIMUM
    table[arch.pad_id] = NOT
    needed = ops.do("Gather", ops.g.weight("search.needed", table), ids, axis=0)
    reached = ops.do("Sub", ops.column(state.lengths), state.minimums)
    if by_row:
        reached = ops.do("Unsqueeze", reached, ops.g.ints(2))
    return ops.do("LessOrEqual", needed, reached)

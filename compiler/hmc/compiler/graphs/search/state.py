"""The state of a search on the device: as it comes in, as it begins for new sentences, as it goes out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from hmc.compiler.graph import DTYPES, GraphBuilder
from hmc.compiler.graphs.search.ops import SearchOps

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


@dataclass
class SearchState:
    """What a step begins with; sentences that are `fresh` have written nothing."""

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
        zero, column = ops.constant(0, "int32"), ops.column(new)
        g.output(ops.do("Where", new, zero, zero), "next_fresh", "int32", ["B"])
        start = ops.constant(0, "float64")
        if rows != 1:  # a new sentence's rows are equal, so only the first of them runs
            only_first = np.full(MOST_ROWS, -np.inf)
            only_first[0] = 0
            start = ops.do("Slice", g.weight("search.only_first", only_first), g.ints(0), ops.k)
        tokens = ops.do("Where", column, ops.constant(start_id, "int32"), inputs["tokens"])
        tokens.shape, tokens.type = ir.Shape(["B", rows]), ir.TensorType(DTYPES["int32"])
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

        A sentence that has ended writes again after its last entry, where nobody reads.
        """
        ops, axis = self.ops, self.ops.g.ints(1)
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

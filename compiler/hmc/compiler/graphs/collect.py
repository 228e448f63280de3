"""collect.onnx: brings together what a search on a device has written down about some sentences.

The host reads it when sentences have ended: three arrays, however many sentences there are, and nothing of the others.
"""

from __future__ import annotations

import onnx_ir as ir

from hmc.compiler.graph import Dims, GraphBuilder

ENDED = {
    "ranks": "float64",
    "totals": "float64",
    "lengths": "int32",
    "rows": "int32",
    "complete": "int32",
    "finals": "float32",
}
"""Ended hypotheses, `ended_NAME` `[B, k]` each (see `search`)."""
HISTORY = {"tokens": "int32", "parents": "int32", "scores": "float32"}
"""The history of all steps, `history_NAME` `[B, P, k]` each."""
COLLECTED = {"float64": "collected_doubles", "int32": "collected_ints", "float32": "collected_floats"}
"""Element type → the output that brings together the inputs of this type."""


def author_collect() -> GraphBuilder:
    """Writes the graph. It has no weights, so it is the same for every level.

    Inputs: those of ENDED and HISTORY; `slots` `[n]` int64, the sentences; `steps` `[1]` int64 on the host, T: how many
    steps of the history are wanted. Outputs: those of COLLECTED, `[n, …]`, each with its inputs side by side in the
    order of ENDED and HISTORY; histories are cut to T steps and flattened, `[n, T · k]`.
    """
    g = GraphBuilder("collect")
    slots, steps = g.input("slots", "int64", ["n"]), g.input("steps", "int64", [1])
    parts: dict[str, list[ir.Value]] = {dtype: [] for dtype in COLLECTED}
    ended: Dims = ["B", "k"]
    for name, dtype in ENDED.items():
        parts[dtype].append(g.op("Gather", [g.input(f"ended_{name}", dtype, ended), slots], axis=0))
    history: Dims = ["B", "P", "k"]
    for name, dtype in HISTORY.items():
        chosen = g.op("Gather", [g.input(f"history_{name}", dtype, history), slots], axis=0)
        cut = g.op("Slice", [chosen, g.ints(0), steps, g.ints(1)])
        parts[dtype].append(g.op("Reshape", [cut, g.ints(0, -1)]))
    for dtype, output in COLLECTED.items():
        g.output(g.op("Concat", parts[dtype], axis=1), output, dtype, ["n", f"collected_{dtype}"])
    return g

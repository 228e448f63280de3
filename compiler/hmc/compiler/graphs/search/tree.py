"""The tree of nodes of beam search, on the device: which node each row's next token gets, and who sees it.

Rows that continue the same hypothesis share its nodes (tree attention: Miao et al. 2024, section 4.2). `node_bias`
`[B, 1, k, N]` is the tree: 0 where a row sees a node, MASKED elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from hmc.compiler.graph import as_type
from hmc.compiler.graphs.search.state import SearchState
from hmc.compiler.precisions.attention import MASKED


@dataclass
class SearchTree:
    """The trees of B sentences in one step."""

    state: SearchState
    dtype: str
    bias: ir.Value
    """`[B, 1, k, N]`, with this step's nodes."""
    nodes: ir.Value
    """`[B, k]` int64: the node of each row's token."""

    @classmethod
    def begin(cls, state: SearchState, dtype: str) -> SearchTree:
        """Takes for each row the lowest nodes that no row of its sentence sees. A new sentence's tree is empty.

        dtype: of the input `node_bias`.
        """
        ops = state.ops
        g = ops.g
        old = g.input("node_bias", dtype, ["B", 1, "k", "N"])
        visible, masked = (g.weight(f"search.node_{v:g}", as_type(np.asarray(v), dtype)) for v in (0, MASKED))
        fresh = ops.do("Unsqueeze", state.fresh, g.ints(2, 3))
        bias = ops.do("Where", fresh, masked, old)
        _, nodes = g.op("TopK", [_in_use(state, bias, dtype), ops.k], largest=0, outputs=2)
        every = ops.counted(g.op("Shape", [old], start=3))
        mine = ops.do("Equal", ops.do("Unsqueeze", nodes, g.ints(1, 3)), every)
        return cls(state, dtype, ops.do("Where", mine, visible, bias), nodes)

    def places(self, heads: int) -> ir.Value:
        """`[B, k, heads, 3]` int64: (sentence, head, node) of each row's new key and value."""
        ops = self.state.ops
        g = ops.g
        head = np.zeros((heads, 3), np.int64)
        head[:, 1] = np.arange(heads)
        is_sentence, is_node = (g.weight(f"search.is_{n}", np.arange(3) == n) for n in (0, 2))
        sentences = ops.counted(g.op("Shape", [self.bias], start=0, end=1))
        sentences = ops.do("Unsqueeze", sentences, g.ints(1, 2, 3))
        base = ops.do("Where", is_sentence, sentences, g.weight(f"search.heads_{heads}", head))
        return ops.do("Where", is_node, ops.do("Unsqueeze", self.nodes, g.ints(2, 3)), base)

    def end(self, parents: ir.Value) -> ir.Value:
        """Row r sees what row parents[r] saw; parents `[B, k]` int64. Declares the output `next_node_bias`.

        Returns how many nodes each sentence then has in use, `[B, 1]` fp32.
        """
        ops = self.state.ops
        g = ops.g
        index = ops.do("Expand", ops.do("Unsqueeze", parents, g.ints(1, 3)), g.op("Shape", [self.bias]))
        bias = ops.do("GatherElements", self.bias, index, axis=2)
        g.output(bias, "next_node_bias", self.dtype, ["B", 1, "k", "N"])
        used = _in_use(self.state, bias, self.dtype)
        half = g.weight("search.node_half", as_type(np.asarray(MASKED / 2), _ranked(self.dtype)))
        return ops.do("ReduceSum", ops.cast(ops.do("Greater", used, half), "float32"), g.ints(1))


def _ranked(dtype: str) -> str:
    """The type in which operators compare biases: they know no bfloat16."""
    return "float32" if dtype == "bfloat16" else dtype


def _in_use(state: SearchState, bias: ir.Value, dtype: str) -> ir.Value:
    """`[B, N]`: 0 for nodes that a row of the sentence sees, MASKED for all others."""
    ops = state.ops
    g = ops.g
    if _ranked(dtype) != dtype:
        bias = ops.cast(bias, _ranked(dtype))
    return ops.do("ReduceMax", bias, g.ints(1, 2), keepdims=0)

"""Vocabulary shortlists in graphs: the output projection of the tokens that the sentences of a batch may need, and of
these each row's own. A row's result depends on its own list alone, whatever else is in the batch."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from hmc.artifact.architecture import TARGET_EMBEDDING
from hmc.artifact.checkpoint import Tensors
from hmc.compiler.graph import MICROSOFT, GraphBuilder
from hmc.compiler.linears import Linears, quantize_columns, rows_of


def author_shortlist(tensors: Tensors, linears: Linears) -> GraphBuilder:
    """shortlist.onnx: what of the output projection a batch needs, run when sentences join it.

    Input: `union` `[U]` int64, token ids. Outputs: `output_weight`, `[U, d]` fp32, or `[d, U]` int8 with `output_scale`
    `[U]` fp32 where the precision quantises the projection; `output_bias` `[U]` fp32.
    """
    g = GraphBuilder("shortlist")
    union, weight = g.input("union", "int64", ["U"]), tensors[TARGET_EMBEDDING]
    if linears.range_of("shared") is None:
        rows = g.op("Gather", [g.weight(TARGET_EMBEDDING, weight.astype(np.float32)), union], axis=0)
        g.output(rows, "output_weight", "float32", ["U", weight.shape[1]])
    else:
        integers, scales = quantize_columns(weight)
        # the decoder's, to share its memory
        table = g.weight(rows_of(TARGET_EMBEDDING), np.ascontiguousarray(integers.T))
        turned = g.op("Transpose", [g.op("Gather", [table, union], axis=0)], perm=[1, 0])
        g.output(turned, "output_weight", "int8", [weight.shape[1], "U"])
        scale = g.op("Gather", [g.weight("shared.weight_scale", scales), union], axis=0)
        g.output(scale, "output_scale", "float32", ["U"])
    bias = g.weight("shared.bias", tensors["final_logits_bias"].reshape(-1).astype(np.float32))
    g.output(g.op("Gather", [bias, union], axis=0), "output_bias", "float32", ["U"])
    return g


class Shortlist:
    """The end of a decoder that has one.

    Inputs it adds: the outputs of `author_shortlist`; `listed` `[R, L]` int64, the places in the union of each row's
    candidates, and `listed_ids` `[R, L]` int64, their tokens. Shorter lists are filled up with a place whose bias is
    -inf.
    """

    def __init__(self, g: GraphBuilder) -> None:
        self.g = g
        self.listed = g.input("listed", "int64", ["R", "L"])
        self.ids = g.input("listed_ids", "int64", ["R", "L"])

    def logits(self, x: ir.Value, width: int, linears: Linears) -> ir.Value:
        """x `[R, d]`, d the width → `[R, L]` fp32."""
        g, found = self.g, linears.range_of("shared")
        if found is None:
            weight = g.input("output_weight", "float32", ["U", width])
            # A product of a single row sums in another order than one of many rows: with this one it is never alone.
            x = g.op("Concat", [x, g.weight("const.row", np.zeros((1, width), np.float32))], axis=0)
            of_union = g.op("Gemm", [x, weight, g.input("output_bias", "float32", ["U"])], transB=1)
        else:
            scale = g.weight("shared.input_scale", np.asarray(found.scale, np.float32))
            zero = g.weight("shared.input_zero_point", np.asarray(found.zero_point, np.uint8))
            quantized = g.op("QuantizeLinear", [x, scale, zero])
            weight = g.input("output_weight", "int8", [width, "U"])
            scales = g.input("output_scale", "float32", ["U"])
            of_union = g.op(
                "MatMulIntegerToFloat",
                [quantized, weight, scale, scales, zero, None, g.input("output_bias", "float32", ["U"])],
                domain=MICROSOFT,
            )
        value: ir.Value = g.op("GatherElements", [of_union, self.listed], axis=1)
        return value

    def tokens(self, columns: ir.Value) -> ir.Value:
        """Places in the rows' lists `[R, …]` → token ids."""
        value: ir.Value = self.g.op("GatherElements", [self.ids, columns], axis=1)
        return value

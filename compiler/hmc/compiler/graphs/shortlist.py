"""Vocabulary shortlists in graphs: an output projection of few tokens instead of the whole vocabulary.

A batch projects to the *union* of its sentences' lists; each row then picks the entries of its own list. So a row's
result does not depend on the other sentences of the batch.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.model.architecture import LOGITS_BIAS, Architecture
from hmc.compiler.graph import MICROSOFT, GraphBuilder
from hmc.compiler.precisions.int8 import quantize_columns, rows_of, transpose
from hmc.compiler.precisions.linears import Linears


def author_shortlist(arch: Architecture, tensors: Tensors, linears: Linears) -> GraphBuilder:
    """shortlist.onnx: the rows of the output projection that a batch needs. It runs when sentences join the batch.

    Input: `union` `[U]` int64, token ids. Outputs: `output_weight`, `[U, d]` fp32, or `[d, U]` int8 with `output_scale`
    `[U]` fp32 where the precision quantises the projection; `output_bias` `[U]` fp32.
    """
    g = GraphBuilder("shortlist")
    name = arch.output_projection
    layer = arch.output_layer
    union = g.input("union", "int64", ["U"])
    weight = tensors[name]
    if linears.range_of(layer) is None:
        rows = g.op("Gather", [g.weight(name, weight.astype(np.float32, copy=False)), union], axis=0)
        g.output(rows, "output_weight", "float32", ["U", weight.shape[1]])
    else:
        integers, scales = linears.derived.get(quantize_columns, weight)
        # The decoder's table of rows, so that both share its bytes.
        table = g.weight(rows_of(name), linears.derived.get(transpose, integers))
        columns = g.op("Transpose", [g.op("Gather", [table, union], axis=0)], perm=[1, 0])
        g.output(columns, "output_weight", "int8", [weight.shape[1], "U"])
        scale = g.op("Gather", [g.weight(f"{layer}.weight_scale", scales), union], axis=0)
        g.output(scale, "output_scale", "float32", ["U"])
    bias = g.weight(f"{layer}.bias", tensors[LOGITS_BIAS].reshape(-1).astype(np.float32))
    g.output(g.op("Gather", [bias, union], axis=0), "output_bias", "float32", ["U"])
    return g


class Shortlist:
    """The output projection of a decoder with shortlists.

    It adds these inputs: the outputs of `author_shortlist`; `listed` `[R, L]` int64, the places of each row's
    candidates in the union; and `listed_ids` `[R, L]` int64, their token ids. Shorter lists are padded with a place
    whose bias is -inf.
    """

    def __init__(self, g: GraphBuilder, layer: str) -> None:
        """layer: name of the output projection."""
        self.g = g
        self.layer = layer
        self.listed = g.input("listed", "int64", ["R", "L"])
        self.ids = g.input("listed_ids", "int64", ["R", "L"])

    def logits(self, x: ir.Value, width: int, linears: Linears) -> ir.Value:
        """x `[R, d]`, d the width → `[R, L]` fp32."""
        g = self.g
        input_range = linears.range_of(self.layer)
        if input_range is None:
            weight = g.input("output_weight", "float32", ["U", width])
            # The product of a single row adds in another order than one of several rows. A row of zeros makes it two.
            x = g.op("Concat", [x, g.weight("const.row", np.zeros((1, width), np.float32))], axis=0)
            union_logits = g.op("Gemm", [x, weight, g.input("output_bias", "float32", ["U"])], transB=1)
        else:
            scale = g.weight(f"{self.layer}.input_scale", np.asarray(input_range.scale, np.float32))
            zero = g.weight(f"{self.layer}.input_zero_point", np.asarray(input_range.zero_point, np.uint8))
            quantized = g.op("QuantizeLinear", [x, scale, zero])
            weight = g.input("output_weight", "int8", [width, "U"])
            scales = g.input("output_scale", "float32", ["U"])
            union_logits = g.op(
                "MatMulIntegerToFloat",
                [quantized, weight, scale, scales, zero, None, g.input("output_bias", "float32", ["U"])],
                domain=MICROSOFT,
            )
        value: ir.Value = g.op("GatherElements", [union_logits, self.listed], axis=1)
        return value

    def tokens(self, columns: ir.Value) -> ir.Value:
        """columns `[R, K]`, places in the rows' lists → token ids `[R, K]`."""
        value: ir.Value = self.g.op("GatherElements", [self.ids, columns], axis=1)
        return value

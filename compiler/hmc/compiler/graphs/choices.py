"""The end of a decoder step: from logits to the best candidates, the score of a given token, or a sampled token.

A *column* is one of the logits `[R, V]`: a token id or, with a shortlist, a place in the row's list (V is then L).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from hmc.compiler.graph import GraphBuilder
from hmc.compiler.graphs.shortlist import Shortlist


def penalise_repetition(g: GraphBuilder, logits: ir.Value) -> ir.Value:
    """logits `[R, V]` → the same with tokens that a row has already made less likely (Keskar et al. 2019, section 4.1).

    It adds these inputs: `penalised` `[R, M]` int64, columns, which may repeat; `penalties` `[R]` fp32, θ, where 1
    changes nothing. A positive logit is divided by θ and a negative one multiplied: both lower it for θ > 1.
    """
    ids = g.input("penalised", "int64", ["R", "M"])
    theta = g.op("Unsqueeze", [g.input("penalties", "float32", ["R"]), g.ints(1)])
    old = g.op("GatherElements", [logits, ids], axis=1)  # [R, M]
    positive = g.op("Greater", [old, g.weight("const.zero", np.asarray(0, np.float32))])
    new = g.op("Where", [positive, g.op("Div", [old, theta]), g.op("Mul", [old, theta])])
    value: ir.Value = g.op("ScatterElements", [logits, ids, new], axis=1)
    return value


def best_candidates(g: GraphBuilder, log_probs: ir.Value, shortlist: Shortlist | None = None) -> ir.Value:
    """Writes the outputs that every decoder has, from log_probs `[R, V]`. Returns the columns of the best, `[R, K]`.

    `scores` `[R, K]` fp32 and `ids` `[R, K]` int64: the log-probabilities and tokens of the best, best first; K is the
    input `candidates` `[1]` int64. `wanted_scores` `[R]` fp32: the log-probability of the input `wanted` `[R]` int64, a
    column.
    """
    candidates, wanted = g.input("candidates", "int64", [1]), g.input("wanted", "int64", ["R"])
    scores, columns = g.op("TopK", [log_probs, candidates], outputs=2)
    g.output(scores, "scores", "float32", ["R", "K"])
    g.output(shortlist.tokens(columns) if shortlist else columns, "ids", "int64", ["R", "K"])
    g.output(_of_one(g, log_probs, wanted), "wanted_scores", "float32", ["R"])
    value: ir.Value = columns
    return value


def draw_tokens(g: GraphBuilder, log_probs: ir.Value, best: ir.Value, shortlist: Shortlist | None = None) -> None:
    """Samples one token a row from softmax(log P / temperature) over all columns that are not banned.

    It adds these inputs: `banned` `[R, N]` int64, columns, which may repeat; `temperatures` `[R]` fp32; `uniforms`
    `[R]` fp32 in [0, 1). The sampled token is the one at which the cumulative distribution, in order of columns,
    exceeds the uniform number. Outputs: `sampled` `[R]` int64; `sampled_scores` `[R]` fp32, its log P at temperature 1;
    `weights` `[R, K]` fp32, the probabilities of the columns `best` under that softmax.
    """
    banned = g.input("banned", "int64", ["R", "N"])
    temperatures, uniforms = g.input("temperatures", "float32", ["R"]), g.input("uniforms", "float32", ["R"])
    never = g.weight("const.never", np.asarray(-np.inf, np.float32))
    allowed = g.op("ScatterElements", [log_probs, banned, g.op("Expand", [never, g.op("Shape", [banned])])], axis=1)
    weights = g.op("Softmax", [g.op("Div", [allowed, g.op("Unsqueeze", [temperatures, g.ints(1)])])], axis=-1)
    g.output(g.op("GatherElements", [weights, best], axis=1), "weights", "float32", ["R", "K"])
    below = g.op("CumSum", [weights, g.weight("const.axis_1", np.asarray(1, np.int64))])  # [R, V]
    total = g.op("Slice", [below, g.ints(-1), g.ints(np.iinfo(np.int64).max), g.ints(1)])  # [R, 1], about 1
    place = g.op("Mul", [g.op("Unsqueeze", [uniforms, g.ints(1)]), total])
    passed = g.op("Cast", [g.op("LessOrEqual", [below, place])], to=int(ir.DataType.INT32))
    count = g.op("ReduceSum", [passed, g.ints(1)], keepdims=0)
    drawn = g.op("Cast", [count], to=int(ir.DataType.INT64))
    sampled = drawn
    if shortlist:
        sampled = g.op("Squeeze", [shortlist.tokens(g.op("Unsqueeze", [drawn, g.ints(1)])), g.ints(1)])
    g.output(_of_one(g, log_probs, drawn), "sampled_scores", "float32", ["R"])
    g.output(sampled, "sampled", "int64", ["R"])


def _of_one(g: GraphBuilder, log_probs: ir.Value, column: ir.Value) -> ir.Value:
    """log_probs `[R, V]`, column `[R]` → `[R]`."""
    picked = g.op("GatherElements", [log_probs, g.op("Unsqueeze", [column, g.ints(1)])], axis=1)
    value: ir.Value = g.op("Squeeze", [picked, g.ints(1)])
    return value

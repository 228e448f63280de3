"""The end of a step of greedy search in the graph: one row a sentence, and one hypothesis, which ends the search."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from hmc.artifact.model.architecture import Architecture
from hmc.compiler.graphs.search.state import SearchState, allowed_tokens

LOWEST = float(np.finfo(np.float32).min)
DEAD = -1e38
"""Totals below this have a token that may not be taken, or belong to a row that does not run."""


def author_greedy_end(state: SearchState, arch: Architecture, scores: ir.Value, ids: ir.Value) -> ir.Value:
    """scores fp32 and ids int64 `[B, K]`: the best next tokens, best first. Declares all outputs `next_…`.

    Returns `[B, 1]` bool: which sentences run on.
    """
    ops = state.ops
    g = ops.g
    lost = ops.constant(-np.inf, "float64")
    lowest = ops.constant(LOWEST, "float32")
    may = ops.do("And", allowed_tokens(state, arch, ids, by_row=False), ops.do("Greater", scores, lowest))
    step, place = g.op("TopK", [ops.do("Where", may, scores, lowest), g.ints(1)], outputs=2)
    token = ops.pick(ids, place)
    next_token = ops.cast(token, "int32")
    zero = ops.constant(0, "int32")
    total = ops.do("Add", state.totals, ops.cast(step, "float64"))
    alive = ops.do("Greater", total, ops.constant(DEAD, "float64"))  # false: no token may follow, or no row runs
    lengths = ops.do("Add", state.lengths, ops.flat(ops.cast(alive, "int32")))
    state.end("lengths", lengths, rows=1)
    lengths = ops.column(lengths)
    complete = ops.do("And", ops.do("Equal", token, g.weight("search.eos", np.asarray(arch.eos_id, np.int64))), alive)
    open_ = ops.do("And", alive, ops.do("Less", lengths, state.limits))
    goes_on = ops.do("And", open_, ops.do("Not", complete))
    runs = ops.do("Greater", state.totals, lost)
    number = ops.do("Less", ops.do("ReduceSum", scores, g.ints(1)), ops.constant(np.inf, "float32"))
    failed = ops.do("And", runs, ops.do("Not", number))
    code = ops.do("Where", goes_on, zero, ops.constant(1, "int32"))
    code = ops.do("Where", failed, ops.constant(2, "int32"), code)
    done = ops.do("Max", state.done, ops.flat(code))
    state.end("done", done, rows=1)
    still = ops.column(ops.do("Equal", done, zero))
    state.end("totals", ops.do("Where", still, total, lost), rows=1)
    state.end("tokens", next_token, rows=1)
    parents = ops.do("Where", state.fresh, zero, zero)
    state.write_history(next_token, parents, step, rows=1)
    _keep_ended(state, runs, still, ops.do("Where", alive, total, state.totals), lengths, complete, step)
    return still


def _keep_ended(
    state: SearchState, ran: ir.Value, still: ir.Value, total: ir.Value, lengths: ir.Value, complete: ir.Value,
    step: ir.Value,
) -> None:  # fmt: skip
    """Sets the hypothesis of the sentences that ended in this step. All `[B, 1]`."""
    ops = state.ops
    stays = ops.do("Or", still, ops.do("Not", ran))
    one = ops.constant(1, "float64")
    zero = ops.constant(0, "int32")
    divisor = ops.do("Pow", ops.do("Max", ops.cast(lengths, "float64"), one), state.penalties)
    parts = {
        "ranks": ops.do("Div", total, divisor),
        "totals": total,
        "lengths": lengths,
        "rows": zero,
        "complete": ops.cast(complete, "int32"),
        "finals": ops.do("Where", complete, step, ops.constant(0, "float32")),
    }
    for name, new in parts.items():
        state.end(f"ended_{name}", ops.do("Where", stays, state.kept[f"ended_{name}"], new), rows=1)

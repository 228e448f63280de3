"""The end of a step of beam search in the graph: candidates → rows, ended hypotheses and which sentences are done."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from hmc.artifact.model.architecture import Architecture
from hmc.compiler.graphs.search.state import NEVER, UNRANKED, SearchState, allowed_tokens


@dataclass
class BeamCandidates:
    """The best 2k candidates of each sentence, and the k of them that run on."""

    totals: ir.Value
    """`[B, 2k]` float64, best first; -inf: no candidate."""
    is_eos: ir.Value
    """`[B, 2k]` bool."""
    parents: ir.Value
    """`[B, 2k]` int64: the row that each continues."""
    scores: ir.Value
    """`[B, 2k]` fp32: the token's log-probability."""
    running: ir.Value
    """`[B, k]` float64: totals of those that run on."""
    running_parents: ir.Value
    """`[B, k]` int64."""
    is_number: ir.Value
    """`[B, 1]` bool: no running row had NaN or +inf."""


def author_beam_end(
    state: SearchState, arch: Architecture, scores: ir.Value, ids: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """scores fp32 and ids int64 `[B, k, K]`: each row's best next tokens, best first. Declares all outputs `next_…`.

    Returns the parents `[B, k]` int64, and `[B, 1]` bool, which sentences run on.
    """
    candidates = _best(state, arch, scores, ids)
    return candidates.running_parents, _end(state, candidates)


def _best(state: SearchState, arch: Architecture, scores: ir.Value, ids: ir.Value) -> BeamCandidates:
    ops = state.ops
    g = ops.g
    never = ops.constant(NEVER, "float64")
    lost = ops.constant(-np.inf, "float64")
    runs = ops.do("Unsqueeze", ops.do("Greater", state.totals, lost), g.ints(2))
    may = ops.do("And", allowed_tokens(state, arch, ids), runs)
    raw = ops.do("Add", ops.do("Unsqueeze", state.totals, g.ints(2)), ops.cast(scores, "float64"))
    raw = ops.do("Where", may, raw, never)
    joined = g.ints(0, -1)  # [B, k, K] → [B, k·K]
    totals, scores, ids = (ops.do("Reshape", v, joined) for v in (raw, scores, ids))
    number = ops.do("ReduceSum", totals, g.ints(1))  # infinite or NaN if one of them is
    number = ops.do("Less", number, ops.constant(np.inf, "float64"))
    totals = ops.do("Where", ops.do("Greater", totals, never), totals, never)
    twice = g.op("Mul", [ops.k, g.ints(2)])
    top, order = g.op("TopK", [totals, twice], outputs=2)
    top_ids = ops.pick(ids, order)
    top_scores = ops.pick(scores, order)
    width = g.op("Shape", [raw], start=2)
    parents = ops.do("Div", order, ops.counted(g.op("Add", [width, g.ints(1)]), width))
    is_eos = ops.do("Equal", top_ids, g.weight("search.eos", np.asarray(arch.eos_id, np.int64)))
    last = ops.do("Where", is_eos, ops.constant(2 * NEVER, "float64"), top)  # EOS behind all that is no candidate
    _, going = g.op("TopK", [last, ops.k], outputs=2)
    top = ops.do("Where", ops.do("Greater", top, never), top, lost)
    tokens = ops.cast(ops.pick(top_ids, going), "int32")
    running_parents = ops.pick(parents, going)
    state.write_history(tokens, ops.cast(running_parents, "int32"), ops.pick(top_scores, going), rows="k")
    state.end("tokens", tokens, rows="k")
    return BeamCandidates(top, is_eos, parents, top_scores, ops.pick(top, going), running_parents, number)


def _end(state: SearchState, candidates: BeamCandidates) -> ir.Value:
    """Keeps the best k hypotheses that have ended, and finds which sentences are done."""
    ops = state.ops
    g = ops.g
    lost = ops.constant(-np.inf, "float64")
    alive = ops.do("Greater", ops.first(candidates.totals), lost)  # false: no token may follow any row, or none runs
    lengths = ops.do("Add", state.lengths, ops.flat(ops.cast(alive, "int32")))
    state.end("lengths", lengths, rows="k")
    lengths = ops.column(lengths)
    open_ = ops.do("And", alive, ops.do("Less", lengths, state.limits))
    cut = ops.do("Where", open_, lost, ops.do("Where", alive, candidates.running, state.totals))
    eos = ops.do("Where", candidates.is_eos, candidates.totals, lost)
    new = ops.do("Concat", ops.first(eos, ops.k), cut, axis=1)  # [B, 2k]
    one = ops.constant(1, "float64")
    divisor = ops.do("Pow", ops.do("Max", ops.cast(lengths, "float64"), one), state.penalties)
    ranks = _merge(state, candidates, new, divisor, lengths)
    best = ops.do("Div", ops.first(candidates.running), divisor)
    worst = ops.do("Slice", ranks, g.ints(-1), g.ints(np.iinfo(np.int64).max), g.ints(1))
    goes_on = ops.do("And", open_, ops.do("Greater", best, worst))
    zero, one_int, two = (ops.constant(n, "int32") for n in (0, 1, 2))
    code = ops.do("Where", candidates.is_number, ops.do("Where", goes_on, zero, one_int), two)
    done = ops.do("Max", state.done, ops.flat(code))
    state.end("done", done, rows="k")
    runs = ops.column(ops.do("Equal", done, zero))
    state.end("totals", ops.do("Where", runs, candidates.running, lost), rows="k")
    return runs


def _merge(
    state: SearchState, candidates: BeamCandidates, new: ir.Value, divisor: ir.Value, lengths: ir.Value
) -> ir.Value:
    """Merges ended hypotheses with new ones: first those before this step, then k by EOS, then k cut off.

    new: totals `[B, 2k]` float64; -inf: none. Returns the ranks that stay, `[B, k]`.
    """
    ops = state.ops
    g = ops.g
    lost = ops.constant(-np.inf, "float64")
    never = ops.constant(NEVER, "float64")
    all_ranks = ops.do("Concat", state.kept["ended_ranks"], ops.do("Div", new, divisor), axis=1)
    ranks, chosen = g.op("TopK", [ops.do("Max", all_ranks, never), ops.k], outputs=2)
    is_one = ops.do("Greater", ranks, ops.constant(UNRANKED, "float64"))
    ranks = ops.do("Where", is_one, ranks, lost)
    state.end("ended_ranks", ranks, rows="k")
    both = g.op("Shape", [new])
    rows = ops.do("Expand", ops.counted(ops.k), ops.shape)
    rows = ops.do("Concat", ops.first(candidates.parents, ops.k), rows, axis=1)
    flags = g.weight("search.complete", np.repeat(np.array([1, 0], np.int32), 128))
    start = g.op("Sub", [g.ints(128), ops.k])
    complete = ops.do("Slice", flags, start, g.op("Add", [g.ints(128), ops.k]))
    parts = {
        "totals": new,
        "lengths": ops.do("Expand", lengths, both),
        "rows": ops.cast(rows, "int32"),
        "complete": ops.do("Expand", complete, both),
        "finals": candidates.scores,  # those of the second half mean nothing
    }
    for name, part in parts.items():
        every = ops.do("Concat", state.kept[f"ended_{name}"], part, axis=1)
        state.end(f"ended_{name}", ops.pick(every, chosen), rows="k")
    return ranks

"""decoder_search_….onnx: a decoder step with the search inside, so that a captured step feeds itself; and collect.onnx.

Beam search is that of `hmc.engine.decoding.beam`, greedy search that with one row; trees of nodes are those of
speculative decoding (Miao et al. 2024, section 4.2). collect.onnx brings together what a search has written down about
some sentences: the host reads three arrays when they have ended, however many they are, and nothing of the others.
"""

from __future__ import annotations

import onnx_ir as ir

from hmc.artifact.bundle.manifest import SearchVariant
from hmc.artifact.model.architecture import Architecture
from hmc.compiler.graph import Dims, GraphBuilder
from hmc.compiler.graphs.attention import NodeAttention, RowAttention
from hmc.compiler.graphs.blocks import Author
from hmc.compiler.graphs.search.beam import author_beam_end
from hmc.compiler.graphs.search.greedy import author_greedy_end
from hmc.compiler.graphs.search.state import SearchState
from hmc.compiler.graphs.search.tree import SearchTree
from hmc.compiler.graphs.step import AttentionWriter, author_logits, cross_attentions

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


def author_search(a: Author, variant: SearchVariant) -> None:
    """Writes one step of B sentences with k rows each. "search_greedy" has k = 1 and a cache for each row.

    Caches are as in `author_decoder`, but "search_beam" makes places and biases of nodes by itself. All other inputs
    and outputs are the same as in `author_search_end`.
    """
    g = a.g
    greedy = variant == "search_greedy"
    state = SearchState.begin(g, a.arch.decoder_start, rows=1 if greedy else "k")
    own: AttentionWriter | None = None
    tree: SearchTree | None = None
    if any(a.layout.decoder_self):
        if greedy:
            own = RowAttention(a, state.lengths)
        else:
            tree = SearchTree.begin(state, a.linears.dtype)
            own = NodeAttention(a, tree.places(max(map(len, a.layout.decoder_self))), tree.bias)
    cross = cross_attentions(a, state.tokens, greedy=greedy)
    logits, _ = author_logits(a, state.tokens, state.lengths, own, cross)
    author_search_end(state, a.arch, g.op("LogSoftmax", [logits], axis=-1), variant, tree)


def author_search_end(
    state: SearchState, arch: Architecture, log_probs: ir.Value, variant: SearchVariant, tree: SearchTree | None = None
) -> None:
    """The search of one step, from log-probabilities `[R, V]` fp32, R = B · k: a log-softmax, so that a row with one
    NaN is NaN throughout, and no single token has +inf. Every output `next_X` may have the
    memory of the input `X`. All memory begins with zeros.

    Inputs beside the log-probabilities; those of a sentence are `[B]`:

    - `candidates` `[1]` int64, on the host: K, at least 2k + 1, or the whole vocabulary where that is less.
    - `limits` int32: the most tokens, EOS included; 0 for a free slot, which is done after the next step. `minimums`
      int32: the fewest. `penalties` float64: the exponent of the length penalty.
    - `fresh` int32: 1 where a sentence begins with this step; its state counts as empty. `next_fresh` is 0.
    - `lengths` int32: tokens so far. `done` int32: 0 runs; 1 has ended, or is no sentence; 2 has failed: a running row
      had NaN or +inf. A finished sentence stays finished, and its ended hypotheses and history do not change.
    - `tokens` `[B, k]` int32: the last token of each row. `totals` `[B, k]` float64: summed log-probabilities, best
      first; -inf: the row does not run.
    - `ended_ranks` `[B, k]` float64: total / length ** penalty of ended hypotheses, best first; -inf: none.
      `ended_totals` float64, `ended_lengths` int32 (tokens, EOS included), `ended_complete` int32 (1: ended by EOS),
      `ended_rows` int32 (the row that EOS continued; for a hypothesis that was cut off, its own row), `ended_finals`
      fp32 (log-probability of EOS; means nothing where cut off): all `[B, k]`.
    - `history_tokens`, `history_parents` int32 and `history_scores` fp32, `[B, P, k]`: entry t is the token t of each
      row, the row that it continues, and its log-probability. P is at least the highest limit plus 1: sentences that
      are done write after their last entry.
    - "search_beam" with self-attention: `node_bias` `[B, 1, k, N]`, see `SearchTree`.

    Output `report` `[2]` int32: sentences that run after this step; and the most nodes in use in any of them, or the
    longest of their lengths where there are no nodes.
    """
    g = state.ops.g
    ops = state.ops
    greedy = variant == "search_greedy"
    candidates = g.input("candidates", "int64", [1])
    scores, ids = g.op("TopK", [log_probs, candidates], outputs=2)
    used: ir.Value | None = None
    if greedy:
        runs = author_greedy_end(state, arch, scores, ids)
    else:
        rows = g.op("Concat", [ops.shape, g.ints(-1)], axis=0)
        scores, ids = (ops.do("Reshape", v, rows) for v in (scores, ids))
        parents, runs = author_beam_end(state, arch, scores, ids)
        used = tree.end(parents) if tree else None
    if used is None:
        lengths = next(v for v in g.outputs if v.name == "next_lengths")
        used = ops.cast(ops.column(lengths), "float32")
    running = ops.cast(runs, "float32")
    count = ops.do("ReduceSum", running, g.ints(0, 1), keepdims=0)
    most = ops.do("ReduceMax", ops.do("Mul", running, used), g.ints(0, 1), keepdims=0)
    both = ops.do("Concat", *(ops.do("Unsqueeze", v, g.ints(0)) for v in (count, most)), axis=0)
    g.output(ops.cast(both, "int32"), "report", "int32", [2])


def author_collect() -> GraphBuilder:
    """Writes the graph. It has no weights, so it is the same for every level.

    Inputs: the arrays of ENDED and HISTORY; `slots` `[n]` int64, the sentences; `steps` `[1]` int64 on the host, T: how
    many steps of the history are wanted. Outputs: the arrays of COLLECTED, `[n, …]`, each with its inputs side by side
    in the order of ENDED and HISTORY; histories are cut to T steps and flattened, `[n, T · k]`.
    """
    g = GraphBuilder("collect")
    slots = g.input("slots", "int64", ["n"])
    steps = g.input("steps", "int64", [1])
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

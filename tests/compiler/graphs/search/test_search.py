"""The search in the graph is the search on the host: every hypothesis, its score to the bit, and when it is done."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from tests.compiler.graphs.search.search_run import SearchRun, open_session
from tests.tiny import tiny_architecture

from hmc.artifact.bundle.manifest import SearchVariant
from hmc.compiler.graph import GraphBuilder
from hmc.compiler.graphs.search.graphs import author_search_end
from hmc.compiler.graphs.search.state import SearchState
from hmc.compiler.graphs.search.tree import SearchTree
from hmc.engine.caches.positions import TreePositions
from hmc.engine.decoding import beam, greedy
from hmc.engine.decoding.state import DecodeState, Rules

ARCH = tiny_architecture(vocab_size=24, pad_id=23)
LogProbs = npt.NDArray[np.float32]


def draw(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> LogProbs:
    """Log-probabilities of one kind of step."""
    if kind == "ties":
        return -rng.integers(0, 3, shape).astype(np.float32)
    found = np.log(rng.dirichlet(np.full(shape[-1], 0.3), shape[:-1]) + 1e-9).astype(np.float32)
    if kind == "eos":
        found[..., ARCH.eos_id] = -rng.random(shape[:-1]) * 2
    elif kind == "never":
        found[rng.random(shape) < 0.9] = -np.inf
    elif kind == "dead":
        found[rng.random(shape[:-1]) < 0.5] = -np.inf
    elif kind == "nan":
        found[rng.random(shape[:-1]) < 0.15] = np.nan
        found[rng.random(shape[:-1]) < 0.03] = np.inf
    return found


class Host:
    """One sentence, searched by the host."""

    def __init__(self, rng: np.random.Generator, k: int) -> None:
        limit = int(rng.integers(1, 14))
        self.rules = Rules(limit, float(rng.choice([0, 0.6, 1, 1.7])), int(rng.integers(1, limit + 1)))
        self.state = DecodeState(k, ARCH.pad_id, ARCH.eos_id)
        self.state.add([self.rules])
        self.tree = TreePositions(k, 1, 400)
        self.tree.add(1)
        self.done = self.steps = 0

    def step(self, log_probs: LogProbs, width: int) -> None:
        order = np.argsort(-log_probs, axis=1, kind="stable")[:, :width]
        self.tree.allocate()
        search = greedy if len(log_probs) == 1 else beam
        result = search.advance(self.state, np.take_along_axis(log_probs, order, 1), order)
        self.tree.reorder(result.parents)
        self.steps += 1
        if len(result.done):
            failed = any(math.isnan(h.score) for h in self.state.finished[0])
            self.done = 2 if failed else 1


def search_alone(variant: SearchVariant) -> GraphBuilder:
    """The search without a decoder: `log_probs` `[R, V]` fp32 is an input."""
    g = GraphBuilder(variant)
    state = SearchState.begin(g, ARCH.decoder_start, rows=1 if variant == "search_greedy" else "k")
    tree = SearchTree.begin(state, "float32") if variant == "search_beam" else None
    author_search_end(state, ARCH, g.input("log_probs", "float32", ["R", ARCH.vocab_size]), variant, tree)
    return g


def run_batch(variant: SearchVariant, k: int, seed: int, kinds: list[str], steps: int) -> int:
    """Compares `steps` steps of random batches. Returns how many sentences ended."""
    rng, slots, nodes = np.random.default_rng(seed), 5, 16 * k
    width = min(beam.candidates_needed(k), ARCH.vocab_size)
    run = SearchRun(open_session(search_alone(variant)), B=slots, k=k, P=16, N=nodes, K=width)
    hosts: list[Host | None] = [None] * slots
    ended = 0
    for _ in range(steps):
        fresh = np.zeros(slots, np.int32)
        for slot in np.flatnonzero(rng.random(slots) < 0.4).tolist():
            present = hosts[slot]
            if present is None or present.done:
                hosts[slot], fresh[slot] = Host(rng, k), 1
            elif rng.random() < 0.05:  # cancelled
                hosts[slot] = None
        rules = [host.rules if host else Rules(0) for host in hosts]
        run.write("limits", np.array([r.limit for r in rules]))
        run.write("minimums", np.array([r.min_length for r in rules]))
        run.write("penalties", np.array([r.length_penalty for r in rules]))
        run.write("fresh", fresh)
        log_probs = draw(rng, (slots, k, ARCH.vocab_size), str(rng.choice(kinds)))
        run.write("log_probs", log_probs.reshape(slots * k, -1))
        run.step()
        assert not run.read("fresh").any()
        for slot, host in enumerate(hosts):
            if host is None:
                continue
            if not host.done:
                host.step(log_probs[slot], width)
                ended += host.done > 0
                if not host.done:
                    assert np.array_equal(run.read("totals")[slot], host.state.scores[0])
                    assert run.read("lengths")[slot] == host.state.lengths[0]
                    compare_tree(run, slot, host)
            assert run.read("done")[slot] == host.done
            compare_hypotheses(run, slot, host)
        compare_report(run, hosts)
    return ended


def compare_hypotheses(run: SearchRun, slot: int, host: Host) -> None:
    if host.done == 2:
        return
    found, expected = run.ended(slot), host.state.finished[0]
    assert [(h.ids, h.complete, h.token_scores) for h in found] == [
        (h.ids, h.complete, h.token_scores) for h in expected
    ]
    assert np.allclose([h.score for h in found], [h.score for h in expected], rtol=1e-15, atol=0)


def compare_tree(run: SearchRun, slot: int, host: Host) -> None:
    """Rows that run see the nodes that they see on the host. Others mean nothing."""
    if "node_bias" not in run.arrays:
        return
    seen = run.read("node_bias")[slot, 0] == 0
    running = host.state.scores[0] > -np.inf
    assert np.array_equal(seen[running].sum(axis=1), np.full(running.sum(), host.steps))
    if running.all():
        assert np.array_equal(seen.any(axis=0).sum(), host.tree.seen[0].any(axis=0).sum())


def compare_report(run: SearchRun, hosts: list[Host | None]) -> None:
    runs = [slot for slot, host in enumerate(hosts) if host and not host.done]
    count, most = run.read("report")
    assert count == len(runs)
    if "node_bias" in run.arrays:
        used = (run.read("node_bias")[:, 0] == 0).any(axis=1).sum(axis=1)
        assert most == max(used[runs], default=0)
    else:
        assert most == max(run.read("lengths")[runs], default=0)


KINDS = {
    "plain": ["plain"],
    "ties": ["ties"],
    "eos": ["eos", "plain"],
    "minus infinity": ["never", "dead", "plain", "eos"],
    "not a number": ["nan", "plain", "eos"],
    "all": ["plain", "ties", "eos", "never", "dead", "nan"],
}


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("k", [1, 2, 4, 5])
def test_beam_search(k: int, kinds: str) -> None:
    assert run_batch("search_beam", k, k, KINDS[kinds], 200) > 30


@pytest.mark.parametrize("kinds", KINDS)
def test_greedy_search(kinds: str) -> None:
    assert run_batch("search_greedy", 1, 7, KINDS[kinds], 300) > 60

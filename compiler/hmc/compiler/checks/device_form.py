"""Checks of what only levels in device form have: encoders that write into slots, and decoders with a search inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.artifact.bundle.manifest import SEARCH_VARIANTS, Level, SearchVariant, decoder_path
from hmc.compiler.checks.runner import GraphRunner
from hmc.compiler.checks.session import Arrays, OpenGraph, own_slots

SPARE = 3
"""Slots, and positions, that the caches of the encoder's check have beside those that it fills."""
DIRTY = 7.0
"""What these caches hold before."""
STEPS = 4
BEAM = 2
"""Tokens of each sentence that the searches translate, fewer where a model has fewer positions; rows of a beam."""


def slot_problems(encoder: OpenGraph, source: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]) -> list[str]:
    """Problems of an encoder that writes into slots; empty for other encoders.

    source `[b, s]`, lengths `[b]`. The sentences, and the last one twice, go to scattered slots of caches with other
    contents. They must be the same as in slots of their own, with zeros after them; nothing else may change.
    """
    if "slots" not in encoder.inputs:
        return []
    count, width = source.shape
    slots = np.random.default_rng(0).permutation(count + SPARE)[:count]
    sentences: Arrays = {"source": source, "source_lengths": lengths}
    alone = encoder.run({**sentences, **own_slots(encoder, count, width)})
    last_twice = [*range(count), count - 1]
    feeds = {name: value[last_twice] for name, value in {**sentences, "slots": slots[:, None]}.items()}
    for name, cache in encoder.empty("cross_", B=count + SPARE, S=width + SPARE).items():
        feeds[name] = np.full_like(cache, DIRTY)
    problems = []
    for name, written in encoder.run(feeds).items():
        others = np.setdiff1d(np.arange(len(written)), slots)
        if not np.allclose(written[slots, :, :width], alone[name], rtol=0, atol=_rounding(alone[name])):
            problems.append(f"encoder: {name} depends on the slots of the sentences")
        if written[slots, :, width:].any():
            problems.append(f"encoder: {name} is not 0 after the sentences")
        if not (written[others] == DIRTY).all():
            problems.append(f"encoder: {name} changes slots of other sentences")
    return problems


def _rounding(values: npt.NDArray[Any]) -> float:
    """How far results of batches of two sizes may lie apart: their products may add in another order."""
    return 64 * float(np.finfo(values.dtype).eps) * max(1.0, float(np.abs(values).max()))


def search_problems(runner: GraphRunner, cross: Arrays, level: Level, bundle: Path, tolerance: float) -> list[str]:
    """Runs the first steps of the searches that `level` has on disk, for the sentences of `cross`.

    - Every row's total must be what the plain decoder gives its tokens, up to `tolerance` for each token, in nats.
    - Greedy search must choose tokens that the plain decoder finds as good as its best.
    - A sentence's rows must differ, and be sorted by their totals.

    The runner's decoder must be closed; afterwards it is closed again.
    """
    problems = []
    for variant in SEARCH_VARIANTS:
        if decoder_path(level.name, variant) not in level.files:
            continue
        tokens, totals = _search(runner, cross, OpenGraph.read(bundle, decoder_path(level.name, variant)), variant)
        runner.decoder = OpenGraph.read(bundle, decoder_path(level.name))
        scores = _plain_scores(runner, cross, tokens)
        runner.decoder.close()
        problems += [f"decoder {variant!r} {problem}" for problem in _differences(tokens, totals, scores, tolerance)]
    return problems


def _search(
    runner: GraphRunner, cross: Arrays, graph: OpenGraph, variant: SearchVariant
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """Tokens `[B, k, T]` and totals `[B, k]` of the rows after T steps. No sentence may end."""
    count = len(cross["source_lengths"]) if cross else 1
    rows = 1 if variant == "search_greedy" else BEAM
    steps = min(STEPS, runner.arch.max_positions - 1)
    room = steps + 1
    state = graph.empty("", B=count, R=count * rows, k=rows, P=room + 1, N=rows * room, T=room, S=1)
    state |= {name: value for name, value in cross.items() if name in graph.inputs}
    candidates = min(2 * rows + 1, runner.arch.vocab_size)
    state |= {"candidates": np.array([candidates]), "total_length": np.array([room], np.int32)}
    for name, first in {"limits": room, "minimums": room, "penalties": 1, "fresh": 1}.items():
        state[name][:] = first
    for _ in range(steps):
        for name, value in graph.run(state).items():
            state[name.removeprefix("next_").replace("present_", "past_")] = value
    graph.close()
    tokens = np.zeros((count, rows, steps), np.int32)
    row = np.tile(np.arange(rows), (count, 1))
    for entry in range(steps - 1, -1, -1):
        tokens[:, :, entry] = np.take_along_axis(state["history_tokens"][:, entry], row, axis=1)
        row = np.take_along_axis(state["history_parents"][:, entry], row, axis=1)
    return tokens, state["totals"]


def _plain_scores(
    runner: GraphRunner, cross: Arrays, tokens: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """What the plain decoder gives each token and its best one that is neither pad nor EOS; `[B, k, T]` both."""
    steps = tokens.shape[2]
    flat = tokens.reshape(-1, steps)
    of_rows = {name: value.repeat(tokens.shape[1], axis=0) for name, value in cross.items()}
    cache = runner.empty_cache(len(flat), steps)
    inputs = {"candidates": np.array([runner.arch.vocab_size])}
    last = runner.first_tokens(len(flat))
    own = []
    best = []
    for position in range(steps):
        out = runner.step(last, position, of_rows, cache, inputs)
        scores = np.full_like(out["scores"], -np.inf)
        np.put_along_axis(scores, out["ids"], out["scores"], axis=1)
        scores[:, [runner.arch.pad_id, runner.arch.eos_id]] = -np.inf
        last = flat[:, position]
        own.append(scores[np.arange(len(flat)), last])
        best.append(scores.max(axis=1))
    return (np.stack(own, axis=-1).reshape(tokens.shape), np.stack(best, axis=-1).reshape(tokens.shape))


def _differences(
    tokens: npt.NDArray[np.int32],
    totals: npt.NDArray[np.float64],
    scores: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],
    tolerance: float,
) -> list[str]:
    """What is wrong with the rows of a search."""
    own, best = scores
    runs = totals > -np.inf
    with np.errstate(invalid="ignore"):
        off = np.where(runs, np.abs(totals - own.sum(axis=-1, dtype=np.float64)), 0.0)
    problems = []
    if not runs[:, 0].all() or not off.max() <= tokens.shape[2] * tolerance:
        problems.append(f"gives totals that are {off.max():.2e} nats from the plain one's")
    if totals.shape[1] == 1 and not (best - own).max() <= 2 * tolerance:  # both tokens may be off
        problems.append(f"chooses a token that is {(best - own).max():.2e} nats less probable in the plain one")
    if (np.diff(np.where(runs, totals, -1e30), axis=1) > 0).any():
        problems.append("does not sort its rows")
    for sentence, running in zip(tokens, runs, strict=True):
        if len(np.unique(sentence[running], axis=0)) < running.sum():
            problems.append("has two equal rows")
            break
    return problems

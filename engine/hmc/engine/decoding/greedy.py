"""One step of greedy search: beam search of size 1, in fewer operations."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hmc.engine.arrays import Ints
from hmc.engine.decoding import beam
from hmc.engine.decoding.state import DecodeState, StepResult


def advance(state: DecodeState, log_probs: npt.NDArray[np.float32], ids: Ints) -> StepResult:
    """The same as `beam.advance` with one row a sentence, if one ended hypothesis ends the search. log_probs and ids
    `[N, K]`, K = beam.candidates_needed(1) or more.

    A row's best token is taken. If it is EOS, no other hypothesis of that length can be better, and the sentence is
    done. Steps in which some best token may not be taken, or its score is not finite, are left to `beam.advance`.
    """
    tokens = ids[:, 0]
    scores = log_probs[:, 0]
    chosen = tokens.tolist()  # searching a short list is faster than searching an array
    is_eos = tokens == state.eos_id if state.eos_id in chosen else None
    if (
        not all_finite(scores)
        or state.pad_id in chosen
        or (is_eos is not None and (is_eos & (state.lengths + 1 < state.minimums)).any())
    ):
        return beam.advance(state, log_probs, ids)
    extend(state, tokens[None], scores[None])
    over = state.lengths >= state.limits
    done = (over if is_eos is None else over | is_eos).nonzero()[0]
    for sentence in done.tolist():
        final = float(scores[sentence]) if chosen[sentence] == state.eos_id else None
        state.end(sentence, 0, float(state.scores[sentence, 0]), final)
    return StepResult(np.arange(len(chosen)), done)


def only_extends(state: DecodeState, tokens: Ints, scores: npt.NDArray[np.float32]) -> bool:
    """Whether a step does nothing but append every row's best token: none is EOS or pad, all scores are finite.
    tokens and scores `[N]`."""
    chosen = tokens.tolist()
    return state.eos_id not in chosen and state.pad_id not in chosen and all_finite(scores)


def all_finite(scores: npt.NDArray[np.float32]) -> bool:
    """Whether no score `[N]` is -inf, +inf or NaN, by one sum: in 64 bits finite ones cannot add up to infinity."""
    return math.isfinite(sum(scores.tolist()))


def extend(state: DecodeState, tokens: Ints, scores: npt.NDArray[np.float32]) -> None:
    """Every row appends the tokens of T steps and their log-probabilities; both `[T, N]`."""
    state.lengths += len(tokens)
    for step in scores:  # one by one, as the sum of floats depends on their order
        state.scores[:, 0] += step
    state.write(tokens.T[:, None], scores.T[:, None])

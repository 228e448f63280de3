"""Sampling: each row of a sentence draws a translation of its own, by its own random numbers."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hmc.engine.arrays import NEG_INF, Ints
from hmc.engine.decoding.state import DecodeState, StepResult
from hmc.engine.requests.options import NUCLEUS_TOKENS, Sampling

Uniforms = npt.NDArray[np.float32]

GREATEST = np.float32(1 - 2**-23)
"""Largest random number. A sum of probabilities in fp32, times this, stays below the sum however it is rounded."""


def uniforms(sampling: Sampling, rows: int, steps: int) -> Uniforms:
    """`[rows, steps]` random numbers in [0, GREATEST] that depend on the seed, the row and the step alone."""
    seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
    drawn = [np.random.default_rng([seed, row]).random(steps, dtype=np.float32) for row in range(rows)]
    return np.minimum(np.stack(drawn), GREATEST)


def candidates_needed(sampling: Sampling) -> int:
    """Candidates per row that `draw` needs; 1 where the graph itself draws among all tokens."""
    return (sampling.top_k or NUCLEUS_TOKENS) if sampling.truncated else 1


def draw(weights: Uniforms, options: Sequence[Sampling], uniforms: Uniforms) -> Ints:
    """Draws one candidate per row; returns its index `[R]`.

    weights `[R, K]`: probabilities of the candidates, best first, 0 for candidates that may not be drawn. options: of
    each row. uniforms `[R]`. Top-k (Fan et al. 2018) is applied before top-p (Holtzman et al. 2020). Its share is of
    the tokens that top-k left. The last token of the nucleus is the one that reaches top_p; without top-k a nucleus has
    at most NUCLEUS_TOKENS. K may be larger than a row needs, because another row needs it; the result is the same.
    """
    top_k = np.array([sampling.top_k or 0 for sampling in options])
    top_p = np.array([sampling.top_p for sampling in options])
    mass = weights.astype(np.float64)
    mass[np.cumsum(mass > 0, axis=1) > np.where(top_k > 0, top_k, NUCLEUS_TOKENS)[:, None]] = 0.0
    total = np.cumsum(mass, axis=1)[:, -1]  # summed in this order whatever K is
    share = mass / np.where(top_k > 0, total, 1.0)[:, None]
    mass[np.cumsum(share, axis=1) - share >= top_p[:, None]] = 0.0
    below = np.cumsum(mass, axis=1)
    passed = (below <= (uniforms * below[:, -1])[:, None]).sum(axis=1)
    last = mass.shape[1] - 1 - np.argmax(mass[:, ::-1] > 0, axis=1)
    drawn: Ints = np.minimum(passed, last)
    return drawn


def advance(
    state: DecodeState, tokens: Ints, scores: npt.NDArray[np.float32], dead: npt.NDArray[np.bool_]
) -> StepResult:
    """One step of sampling: every row appends its token, of log-probability `scores`; all `[N·k]`.

    A row ends with EOS, or without EOS if it is `dead`, which means that no token may follow it. A sentence is done
    when all its rows have ended or at its limit. Where the score of a running row is NaN or +inf, the sentence is done
    and failed (`DecodeState.fail`).
    """
    count, beam = state.scores.shape
    tokens = tokens.reshape(count, beam)
    scores = scores.reshape(count, beam)
    bad = ~(scores < np.inf)
    if bad.any():
        for failed in np.flatnonzero((bad & (state.scores > NEG_INF)).any(axis=1)):
            state.fail(int(failed))
        scores = np.where(bad, NEG_INF, scores)
    for sentence, row in zip(*np.nonzero(dead.reshape(count, beam) & (state.scores > NEG_INF)), strict=True):
        state.end(sentence, row, float(state.scores[sentence, row]), None)
        state.scores[sentence, row] = NEG_INF
    alive = state.scores > NEG_INF
    state.scores = np.where(alive, state.scores + scores, NEG_INF)
    state.lengths += 1
    ends = alive & (tokens == state.eos_id)
    for sentence, row in zip(*np.nonzero(ends), strict=True):
        state.end(sentence, row, float(state.scores[sentence, row]), float(scores[sentence, row]))
    state.scores[ends] = NEG_INF
    state.extend(np.broadcast_to(np.arange(beam), (count, beam)), tokens, scores)
    for sentence in range(count):
        if state.lengths[sentence] >= state.rules[sentence].limit:
            for row in np.flatnonzero(state.scores[sentence] > NEG_INF):
                state.end(sentence, int(row), float(state.scores[sentence, row]), None)
            state.scores[sentence] = NEG_INF
    done = np.flatnonzero((state.scores == NEG_INF).all(axis=1))
    return StepResult(np.arange(count * beam), done)

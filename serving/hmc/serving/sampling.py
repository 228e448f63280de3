"""Sampling: each row of a sentence draws its own translation, by random numbers of its own."""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

from hmc.serving.options import NUCLEUS_TOKENS, Sampling
from hmc.serving.state import NEVER, DecodeState, Ints, Turn

Uniforms = npt.NDArray[np.float32]


GREATEST = np.float32(1 - 2**-23)
"""A total of probabilities in fp32, times this, is less than the total however it is rounded."""


def uniforms(sampling: Sampling, rows: int, steps: int) -> Uniforms:
    """`[rows, steps]` numbers in [0, GREATEST] that depend on the seed, the row and the step alone."""
    seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
    drawn = [np.random.default_rng([seed, row]).random(steps, dtype=np.float32) for row in range(rows)]
    return np.minimum(np.stack(drawn), GREATEST)


def candidates_needed(sampling: Sampling) -> int:
    """Candidates per row that truncated sampling draws among; 1 where the graph draws among all tokens."""
    return (sampling.top_k or NUCLEUS_TOKENS) if sampling.truncated else 1


def draw(weights: Uniforms, top_k: Ints, top_p: npt.NDArray[np.float64], uniforms: Uniforms) -> Ints:
    """The place `[R]` drawn among candidates of probability weights `[R, K]`, best first, 0 for those that may not be
    drawn; top_k, top_p and uniforms `[R]`.

    top_k 0 is none. Top-k comes before top-p, whose share is of what top-k left. The last token of the nucleus is the
    one that reaches top_p; without top-k it has at most NUCLEUS_TOKENS. K is at least as many, for other rows' sake
    more, and does not matter.
    """
    mass = weights.astype(np.float64)
    mass[np.cumsum(mass > 0, axis=1) > np.where(top_k > 0, top_k, NUCLEUS_TOKENS)[:, None]] = 0.0
    total = np.cumsum(mass, axis=1)[:, -1]  # in this order whatever K is
    share = mass / np.where(top_k > 0, total, 1.0)[:, None]
    mass[np.cumsum(share, axis=1) - share >= top_p[:, None]] = 0.0
    below = np.cumsum(mass, axis=1)
    passed = (below <= (uniforms * below[:, -1])[:, None]).sum(axis=1)
    last = mass.shape[1] - 1 - np.argmax(mass[:, ::-1] > 0, axis=1)
    places: Ints = np.minimum(passed, last)
    return places


def advance_samples(
    state: DecodeState, tokens: Ints, scores: npt.NDArray[np.float32], stuck: npt.NDArray[np.bool_]
) -> Turn:
    """One turn: every row continues itself with its token, of log-probability `scores`; all `[N·k]`. stuck: rows that
    no token may continue: they end as they are.

    A row ends with EOS; a sentence is done when all its rows have ended or its limit is reached.
    """
    count, beam = state.scores.shape
    tokens, scores = tokens.reshape(count, beam), scores.reshape(count, beam)
    for sentence, row in zip(*np.nonzero(stuck.reshape(count, beam) & (state.scores > NEVER)), strict=True):
        state.end(sentence, row, float(state.scores[sentence, row]), None)
        state.scores[sentence, row] = NEVER
    alive = state.scores > NEVER
    state.scores = np.where(alive, state.scores + scores, NEVER)
    state.lengths += 1
    ends = alive & (tokens == state.eos_id)
    for sentence, row in zip(*np.nonzero(ends), strict=True):
        state.end(sentence, row, float(state.scores[sentence, row]), float(scores[sentence, row]))
    state.scores[ends] = NEVER
    state.extend(np.broadcast_to(np.arange(beam), (count, beam)), tokens, scores)
    for sentence in range(count):
        if state.lengths[sentence] >= state.rules[sentence].limit:
            for row in np.flatnonzero(state.scores[sentence] > NEVER):
                state.end(sentence, int(row), float(state.scores[sentence, row]), None)
            state.scores[sentence] = NEVER
    done = np.flatnonzero((state.scores == NEVER).all(axis=1))
    return Turn(np.arange(count * beam), done)

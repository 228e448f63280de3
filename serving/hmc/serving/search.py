"""Beam search as arithmetic on one state: no model, no threads. Greedy search is beam size 1.

The caller owns the model. Each turn it runs one decoder step for every row, hands the candidates to `advance`, and
moves its caches as the returned `Turn` says. Sentences may join and leave between turns.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hmc.serving.state import NEVER, DecodeState, Ints, Turn


def candidates_needed(beam: int) -> int:
    """K: candidates per row. 2 · beam always leave `beam` that are not EOS; one more, because pad never counts."""
    return 2 * beam + 1


def advance(state: DecodeState, log_probs: npt.NDArray[np.float32], ids: Ints) -> Turn:
    """One turn of beam search. log_probs and ids `[N·k, K]`: each row's best next tokens, K = candidates_needed(k), and
    one more for each candidate that is -inf because it may not be chosen.

    Ended hypotheses rank by log P / length ** penalty. A sentence is done when k have ended and none that runs can
    beat the worst of them at its present length, or where its rules name a number, when that many have ended; or when
    it reaches its limit: then what runs is taken as it is.
    """
    count, beam = state.scores.shape
    if not count:
        return Turn(np.zeros(0, np.int64), np.zeros(0, np.int64))
    width = log_probs.shape[1]
    ids = ids.reshape(count, beam * width)
    step = _allowed(state, log_probs.reshape(count, beam * width), ids)
    total = (state.scores[:, :, None] + step.reshape(count, beam, width)).reshape(count, beam * width)
    order = np.argsort(-total, axis=1, kind="stable")[:, : 2 * beam]
    places = order + np.arange(0, total.size, beam * width)[:, None]  # in the raveled arrays
    top, tokens = total.take(places), ids.take(places)
    is_eos = tokens == state.eos_id
    dead = top[:, 0] == NEVER
    if dead.any():
        for sentence in np.flatnonzero(dead):
            _give_up(state, int(sentence))
    state.lengths += 1
    if is_eos[:, :beam].any():
        for sentence, column in zip(*np.nonzero(is_eos[:, :beam] & (top[:, :beam] > NEVER)), strict=True):
            final, row = float(step.take(places[sentence, column])), int(order[sentence, column]) // width
            state.end(sentence, row, float(top[sentence, column]), final)
        top[is_eos] = NEVER
        running = np.argsort(is_eos, axis=1, kind="stable")[:, :beam] + np.arange(0, top.size, 2 * beam)[:, None]
        top, tokens, order, places = top.take(running), tokens.take(running), order.take(running), places.take(running)
    state.scores, parents = top[:, :beam].copy(), order[:, :beam] // width  # row within the sentence
    state.extend(parents, tokens[:, :beam], step.take(places[:, :beam]).astype(np.float32))
    return Turn((np.arange(0, count * beam, beam)[:, None] + parents).reshape(-1), _done(state, dead))


def _allowed(state: DecodeState, log_probs: npt.NDArray[np.float32], ids: Ints) -> npt.NDArray[np.float64]:
    """Log-probabilities `[N, k·K]` without pad, and without EOS while a sentence is too short to end."""
    allowed = log_probs.astype(np.float64)
    allowed[ids == state.pad_id] = NEVER
    short = state.lengths + 1 < state.minimums
    if short.any():
        allowed[(ids == state.eos_id) & short[:, None]] = NEVER
    return allowed


def _done(state: DecodeState, dead: npt.NDArray[np.bool_]) -> Ints:
    """Indices of sentences whose search has ended; only those of which something has ended can be."""
    full = state.lengths >= state.limits
    if not (any(state.finished) or full.any() or dead.any()):
        return np.zeros(0, np.int64)
    best = (state.scores.max(axis=1) / state.lengths.astype(np.float64) ** state.penalties).tolist()
    asked = [n for n, ended in enumerate(state.finished) if ended or full[n] or dead[n]]
    return np.array([n for n in asked if _is_done(state, n, best[n])], np.int64)


def _give_up(state: DecodeState, sentence: int) -> None:
    """No token may follow any row: what runs is taken as it is, as at the limit."""
    for row in np.flatnonzero(state.scores[sentence] > NEVER):
        state.end(sentence, int(row), float(state.scores[sentence, row]), None)


def _is_done(state: DecodeState, sentence: int, best: float) -> bool:
    """best: the score of the best hypothesis that runs, at its present length."""
    rules, ended = state.rules[sentence], state.finished[sentence]
    if best == NEVER:
        return True
    if rules.enough is not None:
        if len(ended) >= rules.enough:
            return True
    elif len(ended) == state.beam and best <= ended[-1].score:
        return True
    if state.lengths[sentence] < rules.limit:
        return False
    for row in range(state.beam):
        if (score := float(state.scores[sentence, row])) > NEVER:
            state.end(sentence, row, score, None)
    return True

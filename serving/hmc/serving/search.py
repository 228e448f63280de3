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
    step = _allowed(state, log_probs, ids).reshape(count, beam, width)
    total = (state.scores[:, :, None] + step).reshape(count, beam * width)
    order = np.argsort(-total, axis=1, kind="stable")[:, : 2 * beam]
    each = np.arange(count)[:, None]
    top, step_scores = total[each, order], step.reshape(count, beam * width)[each, order]
    parents = order // width  # row within the sentence
    tokens = ids.reshape(count, beam * width)[each, order]
    is_eos = tokens == state.eos_id
    for sentence in np.flatnonzero(top[:, 0] == NEVER):
        _give_up(state, int(sentence))
    state.lengths += 1
    for sentence, column in zip(*np.nonzero(is_eos[:, :beam] & (top[:, :beam] > NEVER)), strict=True):
        final = float(step_scores[sentence, column])
        state.end(sentence, int(parents[sentence, column]), float(top[sentence, column]), final)
    running = np.argsort(is_eos, axis=1, kind="stable")[:, :beam]
    state.scores = np.where(is_eos[each, running], NEVER, top[each, running])
    chosen = parents[each, running]
    state.extend(chosen, tokens[each, running], step_scores[each, running].astype(np.float32))
    best = (state.scores.max(axis=1) / state.lengths.astype(np.float64) ** state.penalties).tolist()
    written = state.lengths.tolist()
    done = [n for n in range(count) if _is_done(state, n, best[n], written[n])]
    return Turn((each * beam + chosen).reshape(-1), np.asarray(done, np.int64))


def _allowed(state: DecodeState, log_probs: npt.NDArray[np.float32], ids: Ints) -> npt.NDArray[np.float64]:
    """Log-probabilities `[N·k, K]` without pad, and without EOS while a sentence is too short to end."""
    forbidden = ids == state.pad_id
    if np.any(short := state.lengths + 1 < state.minimums):
        forbidden |= (ids == state.eos_id) & np.repeat(short, state.beam)[:, None]
    allowed: npt.NDArray[np.float64] = np.where(forbidden, NEVER, log_probs.astype(np.float64))
    return allowed


def _give_up(state: DecodeState, sentence: int) -> None:
    """No token may follow any row: unless hypotheses have ended, the best row is taken as it is."""
    if not state.finished[sentence]:
        row = int(np.argmax(state.scores[sentence]))
        state.end(sentence, row, float(state.scores[sentence, row]), None)


def _is_done(state: DecodeState, sentence: int, best: float, written: int) -> bool:
    """best: the score of the best hypothesis that runs, at its length, which is `written`."""
    rules, ended = state.rules[sentence], state.finished[sentence]
    if best == NEVER:
        return True
    if rules.enough is not None:
        if len(ended) >= rules.enough:
            return True
    elif len(ended) == state.beam and best <= ended[-1].score:
        return True
    if written < rules.limit:
        return False
    for row in range(state.beam):
        if (score := float(state.scores[sentence, row])) > NEVER:
            state.end(sentence, row, score, None)
    return True

"""Beam search as arithmetic on one state: no model, no threads.

The caller owns the model. At each step it runs the decoder once for every row, hands the candidates to `advance`, and
reorders its caches by the `StepResult`. Sentences may join and leave between steps.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hmc.engine.arrays import NEG_INF, Floats, Ints
from hmc.engine.decoding.state import DecodeState, StepResult


def candidates_needed(beam: int) -> int:
    """K: candidates per row. Of a sentence's best 2 · beam, at least `beam` are not EOS. One more candidate makes up
    for pad, which is never chosen."""
    return 2 * beam + 1


def advance(state: DecodeState, log_probs: npt.NDArray[np.float32], ids: Ints) -> StepResult:
    """One step of beam search. log_probs and ids `[N·k, K]`: each row's best next tokens. K is candidates_needed(k),
    and one more for each candidate that is -inf because it may not be chosen. `log_probs` may be changed.

    Ended hypotheses rank by log P / length ** penalty. A sentence is done in one of these cases:

    - k hypotheses have ended, and no running one scores better than the worst of them at its present length;
    - its rules set a number (`enough`), and that many have ended; this replaces the case before;
    - it is at its limit: the running hypotheses are then taken as they are;
    - log_probs of a running row are NaN or +inf: the sentence has failed (`DecodeState.fail`).
    """
    count, beam = state.scores.shape
    if not count:
        return StepResult(np.zeros(0, np.int64), np.zeros(0, np.int64))
    if not np.maximum.reduce(log_probs, axis=None) < np.inf:  # the negation is true for NaN too
        _fail_sentences(state, log_probs)
    width = log_probs.shape[1]
    ids = ids.reshape(count, beam * width)
    step = _allowed(state, log_probs.reshape(count, beam * width), ids)
    total = (state.scores[:, :, None] + step.reshape(count, beam, width)).reshape(count, beam * width)
    order = np.argsort(-total, axis=1, kind="stable")[:, : 2 * beam]
    flat = order + np.arange(0, total.size, beam * width)[:, None]  # indices into the raveled arrays
    top = total.take(flat)
    tokens = ids.take(flat)
    is_eos = tokens == state.eos_id
    dead = [n for n, best in enumerate(top[:, 0].tolist()) if best == NEG_INF]
    for sentence in dead:
        _end_running(state, sentence)
    state.lengths += 1
    if is_eos[:, :beam].any():
        for sentence, column in zip(*np.nonzero(is_eos[:, :beam] & (top[:, :beam] > NEG_INF)), strict=True):
            final = float(step.take(flat[sentence, column]))
            row = int(order[sentence, column]) // width
            state.end(sentence, row, float(top[sentence, column]), final)
        top[is_eos] = NEG_INF
        running = np.argsort(is_eos, axis=1, kind="stable")[:, :beam] + np.arange(0, top.size, 2 * beam)[:, None]
        top = top.take(running)
        tokens = tokens.take(running)
        order = order.take(running)
        flat = flat.take(running)
    state.scores = top[:, :beam].copy()
    parents = order[:, :beam] // width  # row within the sentence
    state.extend(parents, tokens[:, :beam], step.take(flat[:, :beam]).astype(np.float32))
    return StepResult((np.arange(0, count * beam, beam)[:, None] + parents).reshape(-1), _done(state, dead))


def _fail_sentences(state: DecodeState, log_probs: npt.NDArray[np.float32]) -> None:
    """Fails the sentences with NaN or +inf in a running row, and removes the candidates of all such rows."""
    bad = ~(log_probs < np.inf).all(axis=1)
    log_probs[bad] = NEG_INF
    running = state.scores > NEG_INF
    for sentence in np.flatnonzero((bad.reshape(running.shape) & running).any(axis=1)):
        state.fail(int(sentence))


def _allowed(state: DecodeState, log_probs: npt.NDArray[np.float32], ids: Ints) -> Floats:
    """Log-probabilities `[N, k·K]` without pad, and without EOS while a sentence is too short to end."""
    allowed = log_probs.astype(np.float64)
    allowed[ids == state.pad_id] = NEG_INF
    short = state.lengths + 1 < state.minimums
    if short.any():
        allowed[(ids == state.eos_id) & short[:, None]] = NEG_INF
    return allowed


def _done(state: DecodeState, dead: list[int]) -> Ints:
    """Indices of sentences whose search has ended. Only those are checked that have an ended hypothesis, are at
    their limit, or are in `dead`: no token may follow any of their rows."""
    full = state.lengths >= state.limits
    if not (dead or any(state.finished) or full.any()):
        return np.zeros(0, np.int64)
    best = (state.scores.max(axis=1) / state.lengths.astype(np.float64) ** state.penalties).tolist()
    asked = [n for n, ended in enumerate(state.finished) if ended or full[n] or n in dead]
    return np.array([n for n in asked if _is_done(state, n, best[n])], np.int64)


def _is_done(state: DecodeState, sentence: int, best: float) -> bool:
    """best: the score of the best running hypothesis at its present length."""
    rules = state.rules[sentence]
    ended = state.finished[sentence]
    if best == NEG_INF:
        return True
    if rules.enough is not None:
        if len(ended) >= rules.enough:
            return True
    elif len(ended) == state.beam and best <= ended[-1].score:
        return True
    if state.lengths[sentence] < rules.limit:
        return False
    _end_running(state, sentence)
    return True


def _end_running(state: DecodeState, sentence: int) -> None:
    """Takes the running hypotheses as they are: at the limit, and where no token may follow any of them."""
    for row in np.flatnonzero(state.scores[sentence] > NEG_INF):
        state.end(sentence, int(row), float(state.scores[sentence, row]), None)

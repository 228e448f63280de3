"""Turns of sentences of a single row each: beam search of size 1 in the few operations that it then takes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hmc.serving import search
from hmc.serving.row_caches import RowCaches
from hmc.serving.sessions import Arrays
from hmc.serving.state import NEVER, DecodeState, Ints, Turn

AHEAD = 16
"""Most steps between two looks at what callers cancelled."""


def run_ahead(caches: RowCaches, state: DecodeState, answer: Arrays, undisturbed: Callable[[], bool]) -> Arrays:
    """From the answer of one step on, runs steps while every row only takes its best token, none ends and nothing else
    asks for a turn, and writes these tokens; returns the answer of the last step, whose turn is still to be taken.

    undisturbed: asked before each step. Between two steps all that Python needs has left the processor's caches, so
    what need not happen there is done once, afterwards.
    """
    left = min(int((state.limits - state.lengths).min()) - 1, caches.ahead, AHEAD)
    taken: list[tuple[Ints, npt.NDArray[np.float32]]] = []
    while len(taken) < left and undisturbed():
        tokens, scores = answer["ids"][:, 0], answer["scores"][:, 0]
        chosen = tokens.tolist()
        if state.eos_id in chosen or state.pad_id in chosen or NEVER in scores.tolist():
            break
        taken.append((tokens.copy(), scores.copy()))
        answer = caches.run_on(tokens)
    for tokens, scores in taken:
        _take(state, tokens, scores)
    return answer


def advance(state: DecodeState, log_probs: npt.NDArray[np.float32], ids: Ints) -> Turn:
    """What `search.advance` does with one row a sentence, where one ended hypothesis ends the search. log_probs and ids
    `[N, K]`.

    A row's best token is taken; if that is EOS, no other hypothesis of that length can be better, and the sentence is
    done. Turns in which a best token may not be taken are left to `search.advance`.
    """
    tokens, scores = ids[:, 0], log_probs[:, 0]
    chosen = tokens.tolist()  # looking for a number in a short list is quicker than in an array
    is_eos = tokens == state.eos_id if state.eos_id in chosen else None
    if (
        state.pad_id in chosen
        or NEVER in scores.tolist()
        or (is_eos is not None and (is_eos & (state.lengths + 1 < state.minimums)).any())
    ):
        return search.advance(state, log_probs, ids)
    _take(state, tokens, scores)
    over = state.lengths >= state.limits
    done = (over if is_eos is None else over | is_eos).nonzero()[0]
    for sentence in done.tolist():
        final = float(scores[sentence]) if chosen[sentence] == state.eos_id else None
        state.end(sentence, 0, float(state.scores[sentence, 0]), final)
    return Turn(np.arange(len(chosen)), done)


def _take(state: DecodeState, tokens: Ints, scores: npt.NDArray[np.float32]) -> None:
    """Every row continues with a token; both `[N]`."""
    state.lengths += 1
    state.scores += scores[:, None]
    state.write(tokens, scores)

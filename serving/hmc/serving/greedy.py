"""One turn of sentences of a single row each: beam search of size 1 in the few operations that it then takes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hmc.serving import search
from hmc.serving.state import NEVER, DecodeState, Ints, Turn


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
    take(state, tokens[None], scores[None])
    over = state.lengths >= state.limits
    done = (over if is_eos is None else over | is_eos).nonzero()[0]
    for sentence in done.tolist():
        final = float(scores[sentence]) if chosen[sentence] == state.eos_id else None
        state.end(sentence, 0, float(state.scores[sentence, 0]), final)
    return Turn(np.arange(len(chosen)), done)


def take(state: DecodeState, tokens: Ints, scores: npt.NDArray[np.float32]) -> None:
    """Every row continues with tokens, one turn after the other; both `[T, N]`."""
    state.lengths += len(tokens)
    for turn in scores:  # one by one, as the sum of floats depends on their order
        state.scores[:, 0] += turn
    state.write(tokens.T[:, None], scores.T[:, None])

"""Steps of greedy search between two turns: the model's part of many, and then search's part of all of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hmc.serving import greedy
from hmc.serving.device_rows import DeviceRows
from hmc.serving.row_caches import RowCaches
from hmc.serving.sessions import Arrays
from hmc.serving.state import NEVER, DecodeState, Ints


def run_ahead(
    caches: RowCaches | DeviceRows, state: DecodeState, answer: Arrays, undisturbed: Callable[[], bool]
) -> Arrays:
    """From the answer of one step on, runs steps while every row only takes its best token, none ends and nothing else
    asks for a turn, and writes these tokens; returns the answer of the last step, whose turn is still to be taken.

    undisturbed: asked before each step. Between two steps all that Python needs has left the processor's caches, so
    what need not happen there is done once, afterwards.
    """
    left = min(int((state.limits - state.lengths).min()) - 1, caches.ahead)
    taken: list[Ints] = []
    scored: list[npt.NDArray[np.float32]] = []
    while len(taken) < left and undisturbed():
        tokens, scores = answer["ids"][:, 0], answer["scores"][:, 0]
        chosen = tokens.tolist()
        if state.eos_id in chosen or state.pad_id in chosen or NEVER in scores.tolist():
            break
        taken.append(tokens.copy())
        scored.append(scores.copy())
        answer = caches.run_on(tokens)
    if taken:
        greedy.take(state, np.stack(taken), np.stack(scored))
    return answer

"""Greedy search that runs ahead with a drafter: the model checks what that guesses, many tokens in one step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hmc.serving import greedy
from hmc.serving.chain import MOST
from hmc.serving.drafter import Drafter
from hmc.serving.row_caches import RowCaches
from hmc.serving.sessions import Arrays
from hmc.serving.state import NEVER, DecodeState


def check_ahead(
    caches: RowCaches, state: DecodeState, answer: Arrays, drafter: Drafter, undisturbed: Callable[[], bool]
) -> Arrays:
    """`ahead.run_ahead` of the one sentence of `state`, at which the drafter is: the same tokens, scores and answer, in
    fewer steps (Leviathan et al. 2023, where both models take their best token)."""
    left = min(int(state.limits[0] - state.lengths[0]) - 1, caches.ahead)
    written: list[int] = state.tokens[0, 0, : state.lengths[0]].tolist()
    tokens: list[int] = []
    scores: list[np.float32] = []
    while len(tokens) < left and undisturbed():
        token, score = int(answer["ids"][0, 0]), answer["scores"][0, 0]
        if token in (state.eos_id, state.pad_id) or score == NEVER:
            break
        tokens.append(token)
        scores.append(score)
        guesses = drafter.guess(written + tokens, min(left - len(tokens), MOST - 1))
        if not guesses:
            answer = caches.run_on(np.array([token]))
            continue
        length = caches.length
        checked = caches.run_chain([token, *guesses])
        right = _right(checked, guesses)
        tokens += guesses[:right]
        scores += list(checked["scores"][:right, 0])
        caches.go_to(length + right + 1)
        answer = {name: values[right : right + 1] for name, values in checked.items()}
    if tokens:
        greedy.take(state, np.array(tokens)[:, None], np.array(scores, np.float32)[:, None])
    return answer


def _right(checked: Arrays, guesses: list[int]) -> int:
    """How many of the first guesses are the model's best tokens."""
    best, scores = checked["ids"][:, 0].tolist(), checked["scores"][:, 0].tolist()
    for count, guess in enumerate(guesses):
        if best[count] != guess or scores[count] == NEVER:
            return count
    return len(guesses)

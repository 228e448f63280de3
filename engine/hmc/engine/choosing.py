"""What a step ends with: log-probabilities, the best tokens, and a token that is drawn, by blocks of the vocabulary.

Blocks have one fixed size (`TopCandidates.block`), so that sums have one order. For a sentence with a shortlist V is
the number of its tokens, and ids are their places in the list, which is ascending. Logits of −∞ behind its end change
no bit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hmc.engine.arithmetic import Float32, exp, lane_sum, log

F = np.float32
Ints = npt.NDArray[np.int64]
NEVER = F(-np.inf)


def log_sum_exp(logits: Float32, block: int) -> Float32:
    """ln Σ eˡ of each row `[R, V]` → `[R]`, by blocks of the vocabulary in their order. Each block has its maximum and
    its sum of exponentials, and the running sum is rescaled to the larger maximum."""
    highest = np.full(len(logits), F(-np.inf))
    total = np.zeros(len(logits), F)
    for start in range(0, logits.shape[1], block):
        part = logits[:, start : start + block]
        largest = part.max(axis=1)
        larger = np.maximum(highest, largest)
        empty = larger == F(-np.inf)
        shift = np.where(empty, F(0), larger)
        added = lane_sum(exp(part - shift[:, None]))
        total = total * exp(highest - shift) + added
        highest = larger
    return np.where(highest == F(-np.inf), F(-np.inf), highest + log(total)).astype(F)


def best_tokens(logits: Float32, count: int) -> Ints:
    """The tokens of the `count` largest logits of each row, largest first; ties to the lower id. `[R, count]`."""
    return np.argsort(-logits, axis=1, kind="stable")[:, :count].astype(np.int64)


def penalise_repetition(logits: Float32, rows: Ints, thetas: Float32) -> Float32:
    """Makes tokens that a row already has less likely (Keskar et al. 2019, section 4.1), before probabilities are
    taken.

    rows `[R, M]`: token ids of each row, which may repeat; thetas `[R]`. A positive logit is divided by θ, a negative
    one is multiplied by it.
    """
    penalised = logits.copy()
    for row, tokens in enumerate(rows):
        old = logits[row, tokens]
        penalised[row, tokens] = np.where(old > 0, old / thetas[row], old * thetas[row])
    return penalised


def draw(
    log_probs: Float32,
    banned: Ints,
    temperatures: Float32,
    uniforms: Float32,
    block: int,
    exponential: Callable[[Float32], Float32] = exp,
) -> tuple[Ints, Float32]:
    """Draws a token of each row from softmax(log P / temperature) over all tokens that are not banned.

    log_probs `[R, V]`; banned `[R, N]`, ids that may repeat; temperatures and uniforms `[R]`, uniforms in [0, 1).
    exponential: a function with the results of `exp`, to the bit. Returns the tokens `[R]` and all probabilities `[R,
    V]`; these are 0 in a row whose tokens are all banned.

    The token is the one at which the running sum of weights, in order of ids, exceeds uniform × total. The running sum
    is taken over blocks first, and then over the tokens of one block.
    """
    count, size = log_probs.shape
    allowed = log_probs / temperatures[:, None]
    np.put_along_axis(allowed, banned, NEVER, axis=1)
    highest = allowed.max(axis=1)
    weights = exponential(allowed - np.where(highest == NEVER, F(0), highest)[:, None])
    tokens = np.zeros(count, np.int64)
    totals = np.zeros(count, F)
    for row in range(count):
        sums = [lane_sum(weights[row, start : start + block]) for start in range(0, size, block)]
        ends = np.add.accumulate(np.array(sums, F))
        totals[row] = ends[-1]
        place = F(uniforms[row] * totals[row])
        number = min(int((ends <= place).sum()), len(sums) - 1)
        before = ends[number - 1] if number else F(0)
        inside = weights[row, number * block : (number + 1) * block]
        below = int((before + np.add.accumulate(inside) <= place).sum())
        possible = np.flatnonzero(inside)
        if len(possible):  # rounding may leave the end of a block a little below its sum
            below = min(below, int(possible[-1]))
        tokens[row] = number * block + below
    probabilities = np.where(totals[:, None] > 0, weights / np.where(totals > 0, totals, F(1))[:, None], F(0))
    return tokens, np.where(np.isnan(totals)[:, None], F(np.nan), probabilities).astype(F)

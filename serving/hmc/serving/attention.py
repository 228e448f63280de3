"""What hypotheses attended to in the source: which heads tell, one sentence's trace, and how much it covered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.heads import HeadLayout

Weights = npt.NDArray[np.float32]
TINY = 1e-9
"""Least coverage of a source token: its logarithm stays finite."""


def chosen_heads(layout: HeadLayout, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Places of the named heads among the open cross heads, counted layer by layer; without names, those of the last
    layer that has any. Raises InvalidRequestError for names that are no open cross head."""
    places = [(layer, index) for layer, row in enumerate(layout.cross) for index in row]
    if not places:
        raise InvalidRequestError("this level has no open cross-attention head: choose a level that has for alignment")
    if not names:
        return np.array([i for i, (layer, _) in enumerate(places) if layer == places[-1][0]], np.int64)
    known = {f"cross.{layer}.{index}": i for i, (layer, index) in enumerate(places)}
    for name in names:
        if name not in known:
            raise InvalidRequestError(
                f"attention head {name!r}: the cross heads open at this level are {', '.join(known)}"
            )
    return np.array(sorted({known[name] for name in names}), np.int64)


class AttentionTrace:
    """One sentence's attention, step by step, and which row each row came from: nothing is copied as beams move."""

    def __init__(self, source_length: int, heads: npt.NDArray[np.int64]) -> None:
        self.source_length, self.heads = source_length, heads
        self._weights: list[Weights] = []
        self._parents: list[npt.NDArray[np.int64]] = []

    def look(self, weights: Weights) -> None:
        """What the rows attended to in the step just run: `[H, k, S]`, all open cross heads."""
        self._weights.append(weights[self.heads, :, : self.source_length].mean(axis=0))

    def follow(self, parents: npt.NDArray[np.int64]) -> None:
        """After that step row r is what row parents[r] was; `[k]`."""
        self._parents.append(parents)

    def of(self, row: int, length: int) -> Weights:
        """`[length, S]`: what a hypothesis of `length` tokens attended to. `row` names it as the rows are now."""
        path = []
        for step in range(length - 1, -1, -1):
            if step < len(self._parents):
                row = int(self._parents[step][row])
            path.append(self._weights[step][row])
        return np.stack(path[::-1]) if path else np.zeros((0, self.source_length), np.float32)


def coverage_score(attention: Weights, beta: float) -> float:
    """β · Σ_i log min(Σ_j a_ij, 1) over source tokens i and target tokens j, EOS among both (Wu et al. 2016, equation
    14); attention `[T, S]`."""
    covered = np.clip(attention.sum(axis=0, dtype=np.float64), TINY, 1.0)
    return beta * float(np.log(covered).sum())

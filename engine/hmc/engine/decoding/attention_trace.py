"""What hypotheses attended to in the source: the heads that are read, one sentence's trace, and its coverage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import HeadLayout
from hmc.engine.arrays import Ints

Weights = npt.NDArray[np.float32]
LEAST_COVERAGE = 1e-9
"""Lower bound of a source token's coverage, so that its logarithm stays finite."""


def chosen_heads(layout: HeadLayout, names: Sequence[str]) -> Ints:
    """Indices of the named heads among the open cross heads, counted layer by layer. Without names: all open heads of
    the last layer that has any. Raises InvalidRequestError for a name that is not an open cross head."""
    open_heads = [(head.layer, head.index) for head in layout.heads() if head.kind == "cross"]
    if not open_heads:
        raise InvalidRequestError(
            "this level has no open cross-attention head, so it cannot align: choose a level that has one"
        )
    if not names:
        return np.array([i for i, (layer, _) in enumerate(open_heads) if layer == open_heads[-1][0]], np.int64)
    known = {f"cross.{layer}.{index}": i for i, (layer, index) in enumerate(open_heads)}
    for name in names:
        if name not in known:
            raise InvalidRequestError(
                f"attention head {name!r}: the cross heads open at this level are {', '.join(known)}"
            )
    return np.array(sorted({known[name] for name in names}), np.int64)


class AttentionTrace:
    """One sentence's attention at every step, with the row that each row continued. Reordered beams copy nothing."""

    def __init__(self, source_length: int, heads: Ints) -> None:
        """heads: those whose mean is traced, from `chosen_heads`."""
        self.source_length = source_length
        self.heads = heads
        self._weights: list[Weights] = []
        self._parents: list[Ints] = []

    def record(self, weights: Weights) -> None:
        """Adds the attention of the step just run: `[H, k, S]` of all open cross heads."""
        self._weights.append(weights[self.heads, :, : self.source_length].mean(axis=0))

    def reorder(self, parents: Ints) -> None:
        """After that step row r continues row parents[r]; `[k]`."""
        self._parents.append(parents)

    def weights(self, row: int, length: int) -> Weights:
        """`[length, S]`: the attention of a hypothesis of `length` tokens, which is in `row` now."""
        path = []
        for step in range(length - 1, -1, -1):
            if step < len(self._parents):
                row = int(self._parents[step][row])
            path.append(self._weights[step][row])
        return np.stack(path[::-1]) if path else np.zeros((0, self.source_length), np.float32)


def coverage_score(attention: Weights, beta: float) -> float:
    """β · Σ_i log min(Σ_j a_ij, 1) over source tokens i and target tokens j, both with EOS (Wu et al. 2016, equation
    14); attention `[T, S]`."""
    covered = np.clip(attention.sum(axis=0, dtype=np.float64), LEAST_COVERAGE, 1.0)
    return beta * float(np.log(covered).sum())

"""Hypotheses of searches that ran in the graph, from what the device has written down about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.engine.arrays import NEG_INF, Arrays, Floats, Ints
from hmc.engine.requests.results import DecodedHypothesis

FAILED = 2
"""`done` of a sentence for which the graph gave log-probabilities that are no numbers."""
Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Ended:
    """n sentences of k rows whose search has ended, as the device holds them: ended hypotheses best first, and the
    history of T steps. Entry t of the history was written at the step that made token t."""

    ranks: Floats
    """`[n, k]` total / length ** penalty, as the device computed it; -inf: there is no such hypothesis."""
    totals: Floats
    """`[n, k]` summed log-probabilities."""
    lengths: Int32s
    """`[n, k]` tokens, EOS included."""
    rows: Int32s
    """`[n, k]` the row that holds the last token, EOS not counted."""
    complete: Int32s
    """`[n, k]` 1: EOS ends it; 0: it was cut off."""
    finals: npt.NDArray[np.float32]
    """`[n, k]` log-probability of its EOS."""
    tokens: Int32s
    """`[n, T, k]` the token of each row."""
    parents: Int32s
    """`[n, T, k]` the row that each row continues."""
    scores: npt.NDArray[np.float32]
    """`[n, T, k]` the log-probability of each token."""

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Ended:
        """From arrays by the names that the graphs give them (`ended_ranks`, `history_tokens`, …)."""
        names = ("ranks", "totals", "lengths", "rows", "complete", "finals")
        history = {name: arrays[f"history_{name}"] for name in ("tokens", "parents", "scores")}
        return cls(**{name: arrays[f"ended_{name}"] for name in names}, **history)


def hypotheses(
    ended: Ended, failed: Sequence[bool], n_best: Sequence[int], penalties: Sequence[float]
) -> list[tuple[DecodedHypothesis, ...]]:
    """The best hypotheses of each sentence, best first: at most `n_best[i]` of sentence i. `penalties[i]` is its length
    penalty. They equal the results of `DecodeState.end` for the same tokens. A failed sentence ends as by
    `DecodeState.fail`."""
    most = max(n_best)
    known = (ended.ranks[:, :most] > NEG_INF) & ~np.asarray(failed)[:, None]
    written = np.where(known, (ended.lengths - ended.complete)[:, :most], 0)
    ids, scores = _followed(ended, written, np.where(known, ended.rows[:, :most], 0))
    lengths = ended.lengths[:, :most].tolist()
    complete = ended.complete[:, :most].tolist()
    totals = ended.totals[:, :most].tolist()
    finals = ended.finals[:, :most].tolist()
    is_known = known.tolist()
    kept = written.tolist()
    by_sentence: list[tuple[DecodedHypothesis, ...]] = []
    for i, penalty in enumerate(penalties):
        if failed[i]:
            by_sentence.append((DecodedHypothesis((), math.nan, complete=False),))
            continue
        of_sentence = []
        for j in range(n_best[i]):
            if is_known[i][j]:
                last = [finals[i][j]] if complete[i][j] else []
                of_sentence.append(
                    DecodedHypothesis(
                        tuple(ids[i, j, : kept[i][j]].tolist()),
                        totals[i][j] / max(lengths[i][j], 1) ** penalty,
                        bool(complete[i][j]),
                        tuple(scores[i, j, : kept[i][j]].tolist() + last),
                    )
                )
        by_sentence.append(tuple(of_sentence))
    return by_sentence


def _followed(ended: Ended, written: Ints, row: Ints) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Tokens and log-probabilities of m hypotheses of each sentence, `[n, m, T]`. Follows each from its last token back
    to its first. written `[n, m]`: its tokens, counted; entries behind them mean nothing. row `[n, m]`: the row that
    holds its last token."""
    steps = int(written.max(initial=0))
    count, most = written.shape
    beam = ended.tokens.shape[2]
    rows = np.zeros((steps, count, most), np.int64)
    parents = ended.parents.reshape(-1)
    first = np.arange(count)[:, None] * (ended.parents.shape[1] * beam)
    for step in range(steps - 1, -1, -1):
        rows[step] = row
        if beam > 1:
            row = np.where(step < written, parents.take(first + step * beam + row), row)
    path = rows.transpose(1, 0, 2)
    tokens = np.take_along_axis(ended.tokens[:, :steps], path, axis=2)
    scores = np.take_along_axis(ended.scores[:, :steps], path, axis=2)
    return tokens.swapaxes(1, 2), scores.swapaxes(1, 2)

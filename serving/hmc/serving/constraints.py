"""What a target must start with and may not contain, in token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Constraints:
    """Of one sentence. Nothing is banned within the prefix."""

    prefix: tuple[int, ...] = ()
    """Tokens that the target starts with; they are scored like any others."""
    complete: bool = False
    """The prefix is the whole target, EOS last: it is only scored."""
    suppressed: tuple[tuple[int, ...], ...] = ()
    """Token sequences that do not occur."""
    no_repeat_ngram_size: int = 0

    @property
    def bans(self) -> bool:
        """Whether tokens may be banned at some step."""
        return bool(self.suppressed or self.no_repeat_ngram_size)

    def banned(self, row: npt.NDArray[np.int32]) -> Ints:
        """Tokens that may not follow `row`, the tokens of one hypothesis so far `[t]`; sorted, without doubles."""
        found = [phrase[-1] for phrase in self.suppressed if _ends_with(row, phrase[:-1])]
        if self.no_repeat_ngram_size:
            found += _closing_ngram(row, self.no_repeat_ngram_size)
        return np.unique(np.array(found, np.int64))


def _ends_with(row: npt.NDArray[np.int32], tail: Sequence[int]) -> bool:
    return not tail or tuple(row[-len(tail) :].tolist()) == tuple(tail)


def _closing_ngram(row: npt.NDArray[np.int32], n: int) -> list[int]:
    """Tokens that would write an n-gram again that `row` already has."""
    if len(row) < n:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(row, n)
    same = (windows[:, :-1] == row[len(row) - n + 1 :]).all(axis=1)
    last: list[int] = windows[same, -1].tolist()
    return last


def banned_matrix(rows: Sequence[Ints], fill: int) -> Ints:
    """`[R, N]`: the banned tokens of every row, padded with `fill`; N at least 1."""
    matrix = np.full((len(rows), max([1, *map(len, rows)])), fill, np.int64)
    for row, banned in enumerate(rows):
        matrix[row, : len(banned)] = banned
    return matrix

"""What a target must start with and may not contain, in token ids."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
        found = [phrase[-1] for phrase in self._phrases if row[1 - len(phrase) :].tolist() == [*phrase[:-1]]]
        if self.no_repeat_ngram_size:
            found += _closing_ngram(row, self.no_repeat_ngram_size)
        return np.union1d(self._always, found).astype(np.int64) if found else self._always

    @cached_property
    def _always(self) -> Ints:
        return np.unique(np.array([phrase[0] for phrase in self.suppressed if len(phrase) == 1], np.int64))

    @cached_property
    def _phrases(self) -> list[tuple[int, ...]]:
        return [phrase for phrase in self.suppressed if len(phrase) > 1]


def _closing_ngram(row: npt.NDArray[np.int32], n: int) -> list[int]:
    """Tokens that would write an n-gram again that `row` already has."""
    if len(row) < n:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(row, n)
    same = (windows[:, :-1] == row[len(row) - n + 1 :]).all(axis=1)
    last: list[int] = windows[same, -1].tolist()
    return last

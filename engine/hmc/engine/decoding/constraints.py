"""Constraints on a target, in token ids: how it must start, and which sequences it may not contain."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hmc.engine.arrays import Ints


@dataclass(frozen=True)
class Constraints:
    """The constraints of one sentence. Within the prefix nothing is banned."""

    prefix: tuple[int, ...] = ()
    """Tokens that the target starts with. They are scored like all tokens, but for `free`."""
    complete: bool = False
    """Whether the prefix is the whole target, EOS last, which is only scored."""
    suppressed: tuple[tuple[int, ...], ...] = ()
    """Token sequences that may not occur."""
    no_repeat_ngram_size: int = 0
    """No token sequence of this length may occur twice; 0: no such rule."""
    free: int = 0
    """The first tokens of the prefix that are sure, so that their log-probability is 0: the token of a language."""

    @property
    def bans(self) -> bool:
        """Whether tokens may be banned at some step."""
        return bool(self.suppressed or self.no_repeat_ngram_size)

    def banned(self, row: npt.NDArray[np.int32]) -> Ints:
        """Tokens that may not follow `row`, the tokens of one hypothesis so far `[t]`; ascending, each once."""
        completing = [phrase[-1] for phrase in self._phrases if row[1 - len(phrase) :].tolist() == [*phrase[:-1]]]
        if self.no_repeat_ngram_size:
            completing += _completing_ngram(row, self.no_repeat_ngram_size)
        return np.union1d(self._always, completing).astype(np.int64) if completing else self._always

    @cached_property
    def _always(self) -> Ints:
        return np.unique(np.array([phrase[0] for phrase in self.suppressed if len(phrase) == 1], np.int64))

    @cached_property
    def _phrases(self) -> list[tuple[int, ...]]:
        return [phrase for phrase in self.suppressed if len(phrase) > 1]


UNCONSTRAINED = Constraints()
"""Of a sentence that may begin, go on and end with any token."""


def _completing_ngram(row: npt.NDArray[np.int32], n: int) -> list[int]:
    """Tokens that would complete an n-gram that `row` already has."""
    if len(row) < n:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(row, n)
    same = (windows[:, :-1] == row[len(row) - n + 1 :]).all(axis=1)
    last: list[int] = windows[same, -1].tolist()
    return last

"""A small model that guesses how the translation of one sentence goes on, for a better one to check many tokens at once
(Stern et al. 2018; Leviathan et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np

from hmc.serving.chain import MOST
from hmc.serving.level_caches import greedy_caches
from hmc.serving.sessions import Arrays, LevelSessions
from hmc.serving.state import NEVER

WORTH = log(0.3)
"""Log-probability, in the drafter's eyes, that a guess is reached and right, below which it is not made: to make and
check it costs about as much of a step (measured on a CPU)."""


class Drafter:
    """Greedy search of another level, of the same vocabulary, which follows what another search has written."""

    def __init__(self, sessions: LevelSessions) -> None:
        self.sessions, self._arch = sessions, sessions.arch
        self._caches = greedy_caches(sessions)
        self._source: Sequence[int] | None = None
        self._read: list[int] = []
        """What its caches hold, the start token first."""

    def begin(self, source: Sequence[int]) -> None:
        """Turns to a sentence (ids with EOS); nothing is done if it is the one (the same object) that it is at."""
        if source is self._source:
            return
        if self._source is not None:
            self._caches.keep([])
        lexicon = self.sessions.lexicon
        lists = [lexicon.candidates(source)] if lexicon else []
        self._caches.add(*self.sessions.encode([source]), lists)
        self._source, self._read = source, []

    def guess(self, written: Sequence[int], most: int) -> list[int]:
        """How the sentence may go on after `written`, all its tokens so far: at most `most` tokens, none of which is
        EOS or pad, and none for which it sees little hope."""
        guesses: list[int] = []
        most = min(most, self._arch.max_positions - 1 - len(written))
        if most <= 0:
            return guesses
        answer, hope = self._follow([self._arch.pad_id, *written]), 0.0
        while True:
            token, score = int(answer["ids"][0, 0]), float(answer["scores"][0, 0])
            hope += score
            if hope < WORTH or token in (self._arch.eos_id, self._arch.pad_id) or score == NEVER:
                return guesses
            guesses.append(token)
            if len(guesses) == most or not self._caches.ahead:
                return guesses
            answer = self._caches.run_on(np.array([token]))
            self._read.append(token)

    def _follow(self, tokens: list[int]) -> Arrays:
        """Reads what it has not read of `tokens`, at least the last; answers for that one."""
        caches, known = self._caches, _common(self._read[: len(tokens) - 1], tokens)
        answer: Arrays = {}
        if known:
            caches.go_to(known)
        self._read = list(tokens)
        while known < len(tokens):
            piece = tokens[known : known + min(MOST, caches.ahead if known else 0)]
            if len(piece) > 1:
                answer = {name: values[len(piece) - 1 :] for name, values in caches.run_chain(piece).items()}
                caches.go_to(known + len(piece))
            elif piece:
                answer = caches.run_on(np.array(piece))
            else:  # the first one, or no room: this makes some
                piece = tokens[known : known + 1]
                answer = caches.run(_step(piece[0], known))
            known += len(piece)
        return answer


def _step(token: int, length: int) -> Arrays:
    """The graph's inputs for one row."""
    tokens, lengths = np.array([token], np.int32), np.array([length], np.int32)
    return {"tokens": tokens, "lengths": lengths, "candidates": np.ones(1, np.int64)}


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))

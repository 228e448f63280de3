"""Vocabulary shortlists of a running batch (see `hmc.compiler.graphs.shortlist`).

The graph computes one output projection: for the union of all tokens that the batch's sentences may need. Each sentence
has a list of its own candidates, by their positions in that union.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from hmc.artifact.rounding import round_up
from hmc.engine.arrays import NEG_INF, Arrays, Ints
from hmc.engine.runtime.sessions import LevelSessions

ROUND_LIST = 128
"""List lengths are multiples of this, so that sums over a list run in the same order whatever else is in the batch."""
ROUND_UNION = 64
"""Sizes of the union are multiples of this."""
TOKEN_INPUTS = ("wanted", "penalised", "banned")
"""Inputs of the graph that name tokens, by their positions in lists."""


class Candidates(Protocol):
    """Chooses the tokens of one sentence's list."""

    def __call__(self, source: Sequence[int], known: Sequence[int], /) -> Ints:
        """`[C]`, ascending: candidates for a source, with the target tokens that are `known`."""


class Shortlists:
    """The lists of sentences 0 … N-1 with k rows each."""

    def __init__(
        self, project: Callable[[Ints], Arrays], candidates: Candidates, vocab_size: int, pad_id: int, rows: int
    ) -> None:
        """project: token ids `[U]` → the graph's `output_…` inputs for them."""
        self.inputs: Arrays = {}
        """The graph's inputs. They stay the same until `add` or `keep`."""
        self._project = project
        self._candidates = candidates
        self._pad = pad_id
        self._rows = rows
        self._lists: list[Ints] = []
        self._position_of = np.zeros(vocab_size, np.int64)
        """Token id → its position in the union, where it has one."""

    @classmethod
    def for_level(cls, sessions: LevelSessions, rows: int) -> Shortlists | None:
        """Empty lists for a batch of this level. None: the level has no shortlists."""
        if not sessions.lexicon:
            return None
        arch = sessions.arch
        return cls(sessions.output_projection, sessions.lexicon.candidates, arch.vocab_size, arch.pad_id, rows)

    @property
    def width(self) -> int:
        """L, the common length of the lists."""
        return int(self.inputs["listed"].shape[1])

    def add(self, sources: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]]) -> None:
        """Appends sentences, given by their source tokens and the target tokens that they start with."""
        self._lists += [self._candidates(*pair) for pair in zip(sources, prefixes, strict=True)]
        needed = np.zeros(len(self._position_of), np.bool_)
        needed[np.concatenate(self._lists)] = True
        union = np.flatnonzero(needed)
        size = len(union)
        self._position_of[union] = np.arange(size)
        padded = np.full(round_up(size + 1, ROUND_UNION), self._pad)  # at least one position is in no list
        padded[:size] = union
        outputs = self._project(padded)
        outputs["output_bias"][size:] = NEG_INF
        shape = len(self._lists), round_up(max(map(len, self._lists)) + 1, ROUND_LIST)
        listed = np.full(shape, size)
        ids = np.full(shape, self._pad)
        for sentence, tokens in enumerate(self._lists):
            listed[sentence, : len(tokens)] = self._position_of[tokens]
            ids[sentence, : len(tokens)] = tokens
        rows = {"listed": listed.repeat(self._rows, axis=0), "listed_ids": ids.repeat(self._rows, axis=0)}
        self.inputs = {**outputs, **rows}

    def keep(self, order: Sequence[int]) -> None:
        """Sentence i becomes what sentence order[i] was; sentences that `order` does not name are dropped."""
        self._lists = [self._lists[i] for i in order]
        rows = (np.asarray(order, np.int64)[:, None] * self._rows + np.arange(self._rows)).reshape(-1)
        self.inputs |= {name: self.inputs[name][rows] for name in ("listed", "listed_ids")}

    def translate(self, step: Arrays) -> None:
        """Replaces token ids in the step's inputs by positions in each row's list. A token that is not in the list gets
        the position behind its end."""
        step |= in_lists(step, self._lists)


def in_lists(step: Arrays, lists: Sequence[Ints]) -> Arrays:
    """The step's inputs that name tokens, by positions in the lists `[N]` of sentences with k rows each. A token that
    is not in the list has the position behind its end."""
    inputs: Arrays = {}
    for name in TOKEN_INPUTS:
        if name in step:
            tokens = step[name].reshape(len(lists), -1)
            positions = np.empty_like(tokens)
            for sentence, listed in enumerate(lists):
                places = listed.searchsorted(tokens[sentence])
                missing = listed.take(places, mode="clip") != tokens[sentence]
                positions[sentence] = np.where(missing, len(listed), places)
            inputs[name] = positions.reshape(step[name].shape)
    return inputs

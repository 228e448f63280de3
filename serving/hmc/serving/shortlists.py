"""Vocabulary shortlists of a running batch: one output projection for all tokens that its sentences may need, and for
each sentence the places of its own among them (see `hmc.compiler.shortlist_graph`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.serving.buffers import round_up

Ints = npt.NDArray[np.int64]
Arrays = dict[str, npt.NDArray[Any]]
ROUND_LIST = 128
"""Lists are filled up to a multiple of this, so that the sum over a list runs in the same order in any company."""
ROUND_UNION = 64
NAMED = ("wanted", "penalised", "banned")
"""Inputs of the graph that name tokens, by their places in lists."""


class Shortlists:
    """The lists of sentences 0 … N-1 with k rows each."""

    def __init__(self, project: Callable[[Ints], Arrays], vocab_size: int, pad_id: int, beam: int) -> None:
        """project: token ids `[U]` → the graph's `output_…` inputs for them."""
        self.beam = beam
        self.inputs: Arrays = {}
        """What the graph is given, the same until `add` or `keep`."""
        self._project, self._pad = project, pad_id
        self._own: list[Ints] = []
        self._place = np.zeros(vocab_size, np.int64)

    @property
    def width(self) -> int:
        """L."""
        return int(self.inputs["listed"].shape[1])

    def add(self, lists: Sequence[Ints]) -> None:
        """Appends sentences with their candidates `[C]`, ascending."""
        self._own += lists
        needed = np.zeros(len(self._place), np.bool_)
        needed[np.concatenate(self._own)] = True
        tokens = np.flatnonzero(needed)
        union = np.full(round_up(len(tokens) + 1, ROUND_UNION), self._pad)  # one place at least is nobody's
        union[: len(tokens)] = tokens
        outputs = self._project(union)
        outputs["output_bias"][len(tokens) :] = -np.inf
        self._place[tokens] = np.arange(len(tokens))
        shape = len(self._own), round_up(max(map(len, self._own)) + 1, ROUND_LIST)
        listed, ids = np.full(shape, len(tokens)), np.full(shape, self._pad)
        for sentence, own in enumerate(self._own):
            listed[sentence, : len(own)], ids[sentence, : len(own)] = self._place[own], own
        rows = {"listed": listed.repeat(self.beam, axis=0), "listed_ids": ids.repeat(self.beam, axis=0)}
        self.inputs = {**outputs, **rows}

    def keep(self, order: Sequence[int]) -> None:
        """Sentence i becomes what sentence order[i] was; the rest is dropped."""
        self._own = [self._own[i] for i in order]
        rows = (np.asarray(order, np.int64)[:, None] * self.beam + np.arange(self.beam)).reshape(-1)
        self.inputs |= {name: self.inputs[name][rows] for name in ("listed", "listed_ids")}

    def translate(self, step: Arrays) -> None:
        """Puts places in lists for token ids in the step's inputs. A token that is not in a row's list gets the place
        behind its end."""
        for name in NAMED:
            if name in step:
                step[name] = self._places(step[name].reshape(len(self._own), -1)).reshape(step[name].shape)

    def _places(self, tokens: Ints) -> Ints:
        """tokens `[N, …]` → places of the same shape."""
        places = np.empty_like(tokens)
        for sentence, own in enumerate(self._own):
            found = own.searchsorted(tokens[sentence])
            missing = own.take(found, mode="clip") != tokens[sentence]
            places[sentence] = np.where(missing, len(own), found)
        return places

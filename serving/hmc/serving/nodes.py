"""Beam search as a tree: which cached tokens each row of a sentence attends to.

A node is one token that a row wrote, with its key and value. Rows that continue the same hypothesis share its nodes, so
no cache moves when beams are reordered: only the table of who attends to what does. The idea is that of speculative
decoding's tree attention (Miao et al. 2024, section 4.2), used for the beams of a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
ROUND_NODES = 16


class Nodes:
    """N sentences of k rows each, with `room` places for nodes in every sentence."""

    def __init__(self, beam: int, room: int) -> None:
        self.beam, self.room = beam, room
        self.seen: npt.NDArray[np.bool_] = np.zeros((0, beam, room), bool)
        """`[N, k, room]`: whether a row's hypothesis holds the node at a place."""

    def add(self, sentences: int) -> None:
        """Appends sentences that hold no node yet."""
        self.seen = np.concatenate([self.seen, np.zeros((sentences, self.beam, self.room), bool)])

    def keep(self, order: Sequence[int]) -> None:
        """Sentence i becomes what sentence order[i] was; the rest is dropped."""
        self.seen = self.seen[np.asarray(order, np.int64)]

    def follow(self, parents: Ints) -> None:
        """Every row continues the hypothesis of the row `parents` `[N, k]` of its sentence."""
        if self.beam > 1:
            rows = (parents + np.arange(0, parents.size, self.beam)[:, None]).reshape(-1)
            self.seen = self.seen.reshape(parents.size, -1).take(rows, axis=0).reshape(self.seen.shape)

    def place(self) -> Ints:
        """`[N, k]`: where each row's next node goes; it counts as seen by that row from now on.

        The first places that no row sees are taken, so a sentence's places depend on nothing but itself. `room` grows
        when a sentence has too few.
        """
        used = self.seen.any(axis=1)
        most = int(used.sum(axis=1).max()) + self.beam
        if most > self.room:
            self._grow(max(most, self.room + self.room // 2))
            used = self.seen.any(axis=1)
        places: Ints = np.argsort(used, axis=1, kind="stable")[:, : self.beam]
        self.seen[np.arange(len(places))[:, None], np.arange(self.beam), places] = True
        return places

    def _grow(self, room: int) -> None:
        self.room = -(-room // ROUND_NODES) * ROUND_NODES
        grown = np.zeros((*self.seen.shape[:2], self.room), bool)
        grown[:, :, : self.seen.shape[2]] = self.seen
        self.seen = grown


class NodeCaches:
    """What caches of a tree do the same on every device; they hold the nodes of N sentences of `beam` rows each."""

    beam: int
    first_room: ClassVar[int]
    """Places of a sentence at first."""

    def reorder(self, parents: Ints) -> None:
        """Row r continues row parents[r], one of its sentence; parents `[N·k]`."""
        self.nodes.follow(parents.reshape(-1, self.beam) % self.beam)

    @property
    def _own_room(self) -> int:
        return self.nodes.room

    def _empty_own(self) -> None:
        self.nodes = Nodes(self.beam, self.first_room)

    def _add_own(self, sentences: int) -> None:
        self.nodes.add(sentences)

    def _keep_own(self, order: Sequence[int]) -> None:
        self.nodes.keep(order)

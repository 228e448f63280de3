"""Caches of the beams of a sentence on a CPU: rows share the keys and values of what they have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hmc.serving.buffers import Rows
from hmc.serving.caches import ROUND_TARGET, HostCaches
from hmc.serving.nodes import Nodes
from hmc.serving.sessions import Arrays


class TreeCaches(HostCaches):
    """A sentence's rows share its nodes (see `Nodes`)."""

    axis = "N"

    def reorder(self, parents: Rows) -> None:
        """See `HostCaches`."""
        self.nodes.follow(parents.reshape(-1, self.beam) % self.beam)

    @property
    def _own_room(self) -> int:
        return self.nodes.room

    def _empty_own(self) -> None:
        self.nodes = Nodes(self.beam, ROUND_TARGET)
        self._places = np.zeros((0, self.beam, 0, 3), np.int64)

    def _add_own(self, sentences: int) -> None:
        self.nodes.add(sentences)

    def _keep_own(self, order: Sequence[int]) -> None:
        self.nodes.keep(order)

    def _next_own(self, step: Arrays) -> Arrays:  # noqa: ARG002 - as RowCaches
        """Also what each row attends to."""
        room, places = self.nodes.room, self.nodes.place()
        if self.nodes.room != room:
            self._fit()
        if len(self._places) != self.count:
            shape = (self.count, self.beam, max(b.heads for b in self.own.values()))
            sentence, _, head = np.indices(shape)
            self._places = np.stack([sentence, head, np.zeros_like(head)], axis=-1)
        self._places[..., 2] = places[:, :, None]
        bias = np.where(self.nodes.seen, np.float32(0), np.float32(-np.inf))[:, None]
        return {"node_places": self._places, "node_bias": bias}

"""Caches of the beams of a sentence on a CPU: rows share the keys and values of what they have in common."""

from __future__ import annotations

import numpy as np

from hmc.serving.caches import ROUND_TARGET, HostCaches
from hmc.serving.nodes import NodeCaches
from hmc.serving.sessions import Arrays


class TreeCaches(NodeCaches, HostCaches):
    """A sentence's rows share its nodes (see `Nodes`)."""

    axis = "N"
    first_room = ROUND_TARGET

    def _empty_own(self) -> None:
        super()._empty_own()
        self._places = np.zeros((0, self.beam, 0, 3), np.int64)

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

"""Caches of the beams of a sentence on a device: rows share the keys and values of what they have in common."""

from __future__ import annotations

import numpy as np

from hmc.serving.device_caches import FIRST_ROOM, DeviceCaches
from hmc.serving.nodes import NodeCaches
from hmc.serving.sessions import Arrays

NEVER = np.float32(-1e4)
"""Added to scores of places that are not seen: a weight of 0, and a number that 16 bits hold."""


class DeviceTree(NodeCaches, DeviceCaches):
    """A sentence's rows share its nodes, as in `TreeCaches`."""

    axis = "N"
    first_room = FIRST_ROOM

    def _next_own(self, step: Arrays) -> Arrays:  # noqa: ARG002 - as DeviceRows
        """Also what each row attends to; rows of free slots write and read their first place."""
        written = self.nodes.place()
        if self.nodes.room != next(iter(self.own.values())).shape[2]:
            self._fit(self.size)
        shape = (self.size, self.beam, max(b.heads for b in self.own.values()))
        slot, _, head = np.indices(shape)
        places = np.stack([slot, head, np.zeros_like(head)], axis=-1)
        places[self.slots, ..., 2] = written[:, :, None]
        bias = np.full((self.size, 1, self.beam, self.nodes.room), NEVER, np.float32)
        bias[..., 0] = 0
        bias[self.slots, 0] = np.where(self.nodes.seen, np.float32(0), NEVER)
        return {"node_places": places, "node_bias": bias}

"""Caches of sentences of one row each on a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hmc.serving.buffers import Rows
from hmc.serving.device_caches import FIRST_ROOM, DeviceCaches
from hmc.serving.sessions import Arrays


class DeviceRows(DeviceCaches):
    """Each sentence is one row, and place t holds its token t, as in `RowCaches`."""

    axis = "T"

    @property
    def ahead(self) -> int:
        """Calls of `run_on` that may follow the last call of `run`: any number, as room is made."""
        return int(np.iinfo(np.int64).max)

    def run(self, step: Arrays) -> Arrays:
        """See `DeviceCaches`."""
        self._last = dict(step)
        return super().run(step)

    def run_on(self, tokens: Rows) -> Arrays:
        """See `RowCaches`."""
        return self.run({**self._last, "tokens": tokens.astype(np.int32), "lengths": self._last["lengths"] + 1})

    def reorder(self, parents: Rows) -> None:
        """See `DeviceCaches`: a row has only itself to continue."""

    @property
    def _own_room(self) -> int:
        return self._room

    def _empty_own(self) -> None:
        self._room = FIRST_ROOM

    def _add_own(self, sentences: int) -> None:
        """Lengths come with every step."""

    def _keep_own(self, order: Sequence[int]) -> None:
        """Lengths come with every step."""

    def _next_own(self, step: Arrays) -> Arrays:
        """The total is all the room, always: operators read the rows' own lengths."""
        longest = int(step["lengths"].max()) + 1
        if longest > self._room:
            self._room = 1 << (longest - 1).bit_length()
            self._fit(self.size)
        return {"total_length": np.array([self._room], np.int32)}

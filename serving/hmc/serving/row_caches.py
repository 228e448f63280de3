"""Caches of sentences of one row each on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hmc.serving.buffers import Rows, round_up
from hmc.serving.caches import ROUND_TARGET, HostCaches
from hmc.serving.sessions import Arrays


class RowCaches(HostCaches):
    """Each sentence is one row, and place t holds its token t."""

    axis = "T"

    def reorder(self, parents: Rows) -> None:
        """See `HostCaches`: a row has only itself to continue."""

    @property
    def _own_room(self) -> int:
        return self._room

    def _empty_own(self) -> None:
        self._room = ROUND_TARGET

    def _add_own(self, sentences: int) -> None:
        """Lengths come with every step."""

    def _keep_own(self, order: Sequence[int]) -> None:
        """Lengths come with every step."""

    def _next_own(self, step: Arrays) -> Arrays:
        total = int(step["lengths"].max()) + 1
        if total > self._room:
            self._room = round_up(total, ROUND_TARGET)
            self._fit()
        return {"total_length": np.array([total], np.int32)}

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

    @property
    def ahead(self) -> int:
        """Calls of `run_on` that may follow the last call of `run`."""
        return self._room - self._total

    def run_on(self, tokens: Rows) -> Arrays:
        """The step after the last one, where every row continues with a token, `[R]`, and nothing else has changed. The
        answer is that of `run`."""
        bound = self._bound
        bound["tokens"][...] = tokens
        bound["lengths"] += 1
        if self.own:
            bound["total_length"] += 1
            self._total += 1
        return self._run()

    def reorder(self, parents: Rows) -> None:
        """See `HostCaches`: a row has only itself to continue."""

    @property
    def _own_room(self) -> int:
        return self._room

    def _empty_own(self) -> None:
        self._room, self._total = ROUND_TARGET, 0

    def _add_own(self, sentences: int) -> None:
        """Lengths come with every step."""

    def _keep_own(self, order: Sequence[int]) -> None:
        """Lengths come with every step."""

    def _next_own(self, step: Arrays) -> Arrays:
        self._total = int(step["lengths"].max()) + 1
        if self._total > self._room:
            self._room = round_up(self._total, ROUND_TARGET)
            self._fit()
        return {"total_length": np.array([self._total], np.int32)}

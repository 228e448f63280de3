"""Caches of sentences of one row each on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.serving.buffers import Rows, round_up
from hmc.serving.caches import ROUND_TARGET, HostCaches
from hmc.serving.chain import Chain
from hmc.serving.sessions import Arrays
from hmc.serving.shortlists import Shortlists


class RowCaches(HostCaches):
    """Each sentence is one row, and place t holds its token t."""

    axis = "T"

    def __init__(
        self, session: Any, beam: int, shortlists: Shortlists | None = None, chain: Callable[[], Any] | None = None
    ) -> None:
        """chain: gives the session of the decoder's variant of this name; None: `run_chain` is not called."""
        self._chain = Chain(chain) if chain else None
        super().__init__(session, beam, shortlists)

    def add(self, cross: Arrays, lengths: npt.NDArray[np.int32], lists: Sequence[Rows] = ()) -> None:
        """See `HostCaches`."""
        super().add(cross, lengths, lists)
        if self._chain:
            self._chain.forget_sentence()

    def keep(self, order: Sequence[int]) -> None:
        """See `HostCaches`."""
        super().keep(order)
        if self._chain:
            self._chain.forget_sentence()

    @property
    def candidates(self) -> int:
        """K, of the last step."""
        return self._candidates

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

    def run_chain(self, tokens: Sequence[int]) -> Arrays:
        """What `run_on` would answer after each of these tokens `[R]` of the only sentence, `[R, …]`, R at most
        `chain.MOST` and `ahead`. They count as read only once `go_to` says so."""
        assert self._chain is not None
        return self._chain.run(self, tokens, self.length)

    @property
    def length(self) -> int:
        """Tokens that the only sentence has read."""
        return int(self._bound["lengths"][0]) + 1

    def go_to(self, length: int) -> None:
        """The only sentence has read the first `length` of its tokens, of those that its caches hold."""
        self._bound["lengths"][0] = length - 1
        if self.own:
            self._bound["total_length"][0] = self._total = length

    def reorder(self, parents: Rows) -> None:
        """See `HostCaches`: a row has only itself to continue."""

    def _bind(self, step: Arrays) -> None:
        super()._bind(step)
        if self._chain:
            self._chain.forget_memory()

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

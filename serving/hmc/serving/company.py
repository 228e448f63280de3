"""Lone rows on processors that give them other results.

ONNX Runtime's products may have a kernel of their own for one row, which sums in another order: with 4-bit weights on
processors without AVX-512 a row that was alone had other last bits, and one of a hundred translations was another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.serving.buffers import Rows
from hmc.serving.caches import HostCaches
from hmc.serving.row_caches import RowCaches
from hmc.serving.sessions import Arrays
from hmc.serving.shortlists import Shortlists
from hmc.serving.tree_caches import TreeCaches

TWO = 2


class Accompanied(HostCaches):
    """Of sentences of one row each. One that is alone runs beside a copy of itself, of which nobody hears."""

    def __init__(self, session: Any, beam: int, shortlists: Shortlists | None = None) -> None:
        assert beam == 1
        super().__init__(session, beam, shortlists)
        self.capacity, self.source_lengths = TWO, np.zeros(TWO, np.int32)
        self._copied = False

    def add(self, cross: Arrays, lengths: npt.NDArray[np.int32], lists: Sequence[Rows] = ()) -> None:
        """See `HostCaches`."""
        if self._copied:
            super().keep([0])
        super().add(cross, lengths, lists)
        self._accompany()

    def keep(self, order: Sequence[int]) -> None:
        """See `HostCaches`."""
        super().keep(order)
        self._accompany()

    def _accompany(self) -> None:
        self._copied = self.count == 1
        if self._copied:
            super().keep([0, 0])

    def run(self, step: Arrays) -> Arrays:
        """See `HostCaches`."""
        if not self._copied:
            return super().run(step)
        both = {name: value if name == "candidates" else value.repeat(TWO, axis=0) for name, value in step.items()}
        return self._heard(super().run(both))

    def _heard(self, answer: Arrays) -> Arrays:
        return {name: value[:1] for name, value in answer.items()} if self._copied else answer


class AccompaniedRows(Accompanied, RowCaches):
    """For greedy search."""

    def run_on(self, tokens: Rows) -> Arrays:
        """See `RowCaches`; the copy continues with the same token."""
        return self._heard(super().run_on(tokens))


class AccompaniedTree(Accompanied, TreeCaches):
    """For all else."""

"""A lone row is duplicated and the copy's output is dropped, on processors that compute a single row differently.

ONNX Runtime's matrix products may use another kernel for one row, which sums in another order. With 4-bit weights on
processors without AVX-512 the last bits of a lone row's results differed, and one translation in a hundred changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from hmc.serving.arrays import Arrays, Ints
from hmc.serving.caches.host import HostCaches
from hmc.serving.caches.interface import Caches

COPIES = 2


class LoneRowCaches(Caches):
    """Caches for one row a sentence. They wrap host caches and hold a lone sentence there twice."""

    def __init__(self, caches: HostCaches) -> None:
        """caches: empty, with one row a sentence and a first capacity of at least COPIES sentences."""
        assert caches.rows == 1
        assert caches.capacity >= COPIES
        self.caches = caches
        self._copied = False
        """Whether the only sentence is in `caches` twice."""

    def groups(self, lengths: Sequence[int]) -> list[list[int]]:
        """See `Caches`."""
        return self.caches.groups(lengths)

    def add(
        self,
        sources: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]],
        limits: Sequence[int] = (),  # noqa: ARG002 - buffers grow when they have to
    ) -> None:
        """See `Caches`."""
        if self._copied:
            self.caches.keep([0])
        self.caches.add(sources, prefixes)
        self._duplicate()

    def keep(self, order: Sequence[int]) -> None:
        """See `Caches`."""
        self.caches.keep(order)
        self._duplicate()

    def _duplicate(self) -> None:
        self._copied = self.caches.count == 1
        if self._copied:
            self.caches.keep([0] * COPIES)

    def clean(self, sentences: Sequence[int]) -> None:
        """See `Caches`."""
        self.caches.clean(range(self.caches.count) if self._copied else sentences)

    def reorder(self, parents: Ints) -> None:
        """Nothing to do: a sentence's only row continues itself."""

    def run(self, step: Arrays) -> Arrays:
        """See `Caches`."""
        if self._copied:
            step = {n: value if n == "candidates" else value.repeat(COPIES, axis=0) for n, value in step.items()}
        return self._without_copy(self.caches.run(step))

    @property
    def steps_ahead(self) -> int:
        """See `Caches`."""
        return self.caches.steps_ahead

    def run_next(self, tokens: Ints) -> Arrays:
        """See `Caches`. The copy continues with the same token."""
        return self._without_copy(self.caches.run_next(tokens))

    def _without_copy(self, outputs: Arrays) -> Arrays:
        return {name: value[:1] for name, value in outputs.items()} if self._copied else outputs

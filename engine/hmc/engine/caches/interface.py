"""The interface of decoder caches: the same for every kind of memory and every search.

A cache kind combines a kind of memory (`HostCaches`, `DeviceCaches`) with a layout of target positions
(`RowPositions`, `TreePositions`). To add a kind, write its file, name it in `choice.py`, and test it against an
existing one, as `tests/engine/caches/test_device_caches.py` does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from hmc.engine.arrays import Arrays, Ints

UNLIMITED_STEPS = 1 << 62
"""Steps for which there is room, where caches never run out of it."""


class Caches(ABC):
    """Keys and values of the sentences 0 … N-1 of one batch, for every decoder layer: of the source (cross-attention)
    and of the target so far (self-attention). A sentence has k rows; row r belongs to sentence r // k, R = N · k."""

    @abstractmethod
    def groups(self, lengths: Sequence[int]) -> list[list[int]]:
        """Groups new sentences, given by their source lengths, for calls of `add` in this order. A group holds indices
        into `lengths`."""

    @abstractmethod
    def add(
        self, sources: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]], limits: Sequence[int] = ()
    ) -> None:
        """Encodes sentences (token ids with EOS) and appends them.

        prefixes: target tokens that each sentence starts with; a vocabulary shortlist must hold them. limits: the most
        target tokens of each sentence, for which a device makes room beforehand; none: unknown.
        """

    @abstractmethod
    def keep(self, order: Sequence[int]) -> None:
        """Sentence i becomes the former sentence order[i]. Sentences that `order` does not name are dropped."""

    @abstractmethod
    def clean(self, sentences: Sequence[int]) -> None:
        """Sets the keys and values of failed sentences to 0, of source and target. They may be NaN, which masks do not
        hide from a sentence that gets this memory later: a weight of 0 times NaN is NaN."""

    @abstractmethod
    def reorder(self, parents: Ints) -> None:
        """Row r continues row parents[r] of the same sentence; parents `[R]`."""

    @abstractmethod
    def run(self, step: Arrays) -> Arrays:
        """Runs one decoder step of all rows and returns the graph's outputs, without the caches.

        step: the graph's inputs without caches and source lengths, `[R]` or `[R, …]` each; this call may change the
        dictionary. `wanted` may be missing; `wanted_scores` then mean nothing. Outputs are valid until the next step.
        """

    @property
    @abstractmethod
    def steps_ahead(self) -> int:
        """How many calls of `run_next` may follow the last `run`; 0 if rows can be reordered between steps."""

    @abstractmethod
    def run_next(self, tokens: Ints) -> Arrays:
        """Runs the step after the last one: every row continues itself by one token, and nothing else changes.

        tokens `[R]`. Returns the outputs, as `run` does. May be called `steps_ahead` times.
        """

    def warm_up(self) -> None:  # noqa: B027 - most kinds have nothing to do
        """Does work in advance that the first steps would do otherwise, such as taking memory. There are no sentences
        yet."""

    def close(self) -> None:  # noqa: B027
        """Gives memory back that is not freed with this object. Nothing may be called afterwards."""

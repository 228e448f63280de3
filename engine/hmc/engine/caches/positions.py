"""Where the keys and values of target tokens lie in the self-attention caches of a batch.

Two layouts: `RowPositions` for one row a sentence, where position t holds token t, and `TreePositions` for beams, whose
rows share the tokens that they have in common. A position is an index into the axis of a cache that grows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from hmc.artifact.rounding import round_up
from hmc.engine.arrays import Arrays, Ints
from hmc.engine.caches.interface import UNLIMITED_STEPS

ROUND_POSITIONS = 16


class Positions(ABC):
    """The positions of the sentences 0 … N-1."""

    axis: ClassVar[str]
    """The axis of the graph's `past_…` inputs that grows."""

    def __init__(self, first_capacity: int) -> None:
        self.capacity = self._first_capacity = first_capacity
        """Positions of each sentence. It grows in `next_inputs` and `resize`, and shrinks in `reset`."""

    @abstractmethod
    def needed(self, step: Arrays) -> int:
        """Positions of a sentence that the next step needs. step: its inputs, for `next_inputs`."""

    def resize(self, capacity: int) -> None:
        """Sets the capacity. A device does so before `next_inputs` would."""
        self.capacity = capacity

    def reset(self) -> None:
        """Forgets all sentences, and the capacity that they needed."""
        self.capacity = self._first_capacity

    @property
    def steps_ahead(self) -> int:
        """See `Caches.steps_ahead`."""
        return 0

    @abstractmethod
    def add(self, sentences: int) -> None:
        """Appends sentences that have written nothing yet."""

    @abstractmethod
    def keep(self, order: Sequence[int]) -> None:
        """See `Caches.keep`."""

    @abstractmethod
    def reorder(self, parents: Ints) -> None:
        """See `Caches.reorder`."""

    @abstractmethod
    def next_inputs(self, step: Arrays, slots: Ints | None = None, size: int = 0) -> Arrays:
        """Reserves a position for the next token of every row; returns the graph's inputs that say where they are.

        step: the step's other inputs. slots: each sentence's index in the caches, if sentence i is not at index i; the
        graph then sees the first `size` slots.
        """

    def advance(self, inputs: Arrays) -> None:
        """Changes the inputs of the last step in place: every row continues itself by one token."""
        raise NotImplementedError("beams choose their parents at every step")


class RowPositions(Positions):
    """One row a sentence: position t holds the row's token t. The lengths come with every step."""

    axis = "T"

    def __init__(self, first_capacity: int, *, fixed_total: bool = False) -> None:
        """fixed_total: the capacity is set by `resize` alone, and the graph has it as its total length."""
        super().__init__(first_capacity)
        self._fixed_total = fixed_total
        self._total = 0
        """Length of the longest row, the next token included."""

    def reset(self) -> None:
        super().reset()
        self._total = 0

    @property
    def steps_ahead(self) -> int:
        """As far as the capacity reaches. Without limit if caches grow before a step."""
        return UNLIMITED_STEPS if self._fixed_total else self.capacity - self._total

    def needed(self, step: Arrays) -> int:
        """See `Positions`: the length of the longest row, the next token included."""
        return int(step["lengths"].max()) + 1

    def add(self, sentences: int) -> None:
        """Nothing to do: lengths come with every step."""

    def keep(self, order: Sequence[int]) -> None:
        """Nothing to do: lengths come with every step."""

    def reorder(self, parents: Ints) -> None:
        """Nothing to do: a sentence's only row continues itself."""

    def next_inputs(self, step: Arrays, slots: Ints | None = None, size: int = 0) -> Arrays:  # noqa: ARG002 - trees need them
        """`total_length` `[1]`: the length that operators allow for, unless it is fixed. Each row's length masks the
        rest."""
        if self._fixed_total:
            return {}
        self._total = self.needed(step)
        if self._total > self.capacity:
            self.capacity = round_up(self._total, self._first_capacity)
        return {"total_length": np.array([self._total], np.int32)}

    def advance(self, inputs: Arrays) -> None:
        inputs["total_length"] += 1
        self._total += 1


class TreePositions(Positions):
    """k rows a sentence, with the beams of a sentence as a tree. A node is one token that a row wrote.

    Rows that continue the same hypothesis share its nodes, so no cache moves when beams are reordered: only the table
    of which row attends to which position does. Tree attention is used as in speculative decoding (Miao et al. 2024,
    section 4.2), here for the beams of a sentence.
    """

    axis = "N"

    def __init__(self, beam: int, heads: int, first_capacity: int, masked: float = -np.inf) -> None:
        """heads: of the layer that has most. masked: added to attention scores of positions that a row does not see."""
        super().__init__(first_capacity)
        self._beam = beam
        self._heads = heads
        self._masked = np.float32(masked)
        self.seen: npt.NDArray[np.bool_] = np.zeros((0, beam, first_capacity), bool)
        """`[N, k, capacity]`: whether a row's hypothesis holds the token at a position."""
        self._places: Ints = np.zeros((0, beam, 0, 3), np.int64)

    def reset(self) -> None:
        super().reset()
        self.seen = np.zeros((0, self._beam, self.capacity), bool)
        self._places = np.zeros((0, self._beam, 0, 3), np.int64)

    def add(self, sentences: int) -> None:
        self.seen = np.concatenate([self.seen, np.zeros((sentences, self._beam, self.capacity), bool)])

    def keep(self, order: Sequence[int]) -> None:
        self.seen = self.seen[np.asarray(order, np.int64)]

    def reorder(self, parents: Ints) -> None:
        beam = self._beam
        if beam > 1:
            parents = parents.reshape(-1, beam) % beam
            rows = (parents + np.arange(0, parents.size, beam)[:, None]).reshape(-1)
            self.seen = self.seen.reshape(parents.size, -1).take(rows, axis=0).reshape(self.seen.shape)

    def allocate(self) -> Ints:
        """`[N, k]`: the position of each row's next token. The row sees it from now on.

        The first positions that no row of the sentence sees are taken, so a sentence's positions do not depend on the
        rest of the batch. The capacity grows when a sentence has too few free positions.
        """
        used = self.seen.any(axis=1)
        needed = int(used.sum(axis=1).max()) + self._beam
        if needed > self.capacity:
            self.resize(round_up(max(needed, self.capacity + self.capacity // 2), ROUND_POSITIONS))
            used = self.seen.any(axis=1)
        free: Ints = np.argsort(used, axis=1, kind="stable")[:, : self._beam]
        self.seen[np.arange(len(free))[:, None], np.arange(self._beam), free] = True
        return free

    def needed(self, step: Arrays) -> int:  # noqa: ARG002 - rows need it
        """See `Positions`: the nodes that rows of a sentence see, and one for each of its rows."""
        return int(self.seen.any(axis=1).sum(axis=1).max()) + self._beam

    def resize(self, capacity: int) -> None:
        """See `Positions`. Nodes stay where they are."""
        self.capacity = capacity
        grown = np.zeros((*self.seen.shape[:2], self.capacity), bool)
        grown[:, :, : self.seen.shape[2]] = self.seen
        self.seen = grown

    def next_inputs(self, step: Arrays, slots: Ints | None = None, size: int = 0) -> Arrays:  # noqa: ARG002 - rows need it
        """`node_places` `[size, k, H, 3]`: slot, head and position that each row writes; and `node_bias` `[size, 1, k,
        capacity]`: 0 where a row attends, `masked` elsewhere. Rows of unused slots write and read position 0."""
        position = self.allocate()
        size = size or len(position)
        if len(self._places) != size:
            slot, _, head = np.indices((size, self._beam, self._heads))
            self._places = np.stack([slot, head, np.zeros_like(head)], axis=-1)
        if slots is None:
            self._places[..., 2] = position[:, :, None]
            return {"node_places": self._places, "node_bias": self._bias()}
        self._places[..., 2] = 0
        self._places[slots, ..., 2] = position[:, :, None]
        bias = np.full((size, 1, self._beam, self.capacity), self._masked, np.float32)
        bias[..., 0] = 0
        bias[slots] = self._bias()
        return {"node_places": self._places, "node_bias": bias}

    def _bias(self) -> npt.NDArray[np.float32]:
        return np.where(self.seen, np.float32(0), self._masked)[:, None]


def most_heads(decoder: Any) -> int:
    """Open self-attention heads of the layer that has most, in an ONNX Runtime session of a decoder."""
    return max((int(i.shape[1]) for i in decoder.get_inputs() if i.name.startswith("past_")), default=0)

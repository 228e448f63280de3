"""Sizes of the caches on a device, as arithmetic: a short chain of geometries, each with fixed shapes.

Fixed shapes let every (number of slots, geometry) keep one binding and one captured graph for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from hmc.artifact.rounding import round_up

FIRST_SOURCE = 32
FIRST_TARGET = 64
"""Rooms of the first bucket, in tokens; each further bucket has twice as many. A sentence of n tokens may have 2n + 10
in its translation, so the first bucket takes sentences of up to 27 tokens."""
ROUND_ROOM = 16
"""Rooms are multiples of this, because some kernels need aligned rows."""
SIZE_STEP = 4
"""Steps run 1, 4, 16, … slots, or all of them. On a GPU a step of a few rows takes as long as one of 16: it waits for
launches and weights. Each size costs a captured graph."""


@dataclass(frozen=True)
class Geometry:
    """The shapes of a batch's caches."""

    rows: int
    """k, of each sentence."""
    slots: int
    """B: sentences."""
    source: int
    """S: source positions of a sentence."""
    target: int
    """T: most target tokens of a row."""
    nodes: int
    """N: positions in the tree of a sentence; 0 for caches by rows."""
    bucket: int
    """Its bucket: sentences of a bucket have the same rooms S and T."""
    full: bool
    """Whether a tree has k · T nodes, so that it never runs out; tight trees have T."""

    @property
    def pool(self) -> int:
        """The number of the pool of memory, of two, in which it lies. Its neighbours, to which it grows, lie in the
        other one."""
        return (self.bucket + self.full) % 2

    def size_of(self, axis: str | int, slots: int) -> int:
        """The size of an axis of a graph's input in a step of so many slots; axis: a size, or its name in the graph
        (B, R, k, S, T, N). Raises KeyError for another name."""
        if isinstance(axis, int):
            return axis
        sizes = {
            "B": slots,
            "R": slots * self.rows,
            "k": self.rows,
            "S": self.source,
            "T": self.target,
            "N": self.nodes,
        }
        return sizes[axis]

    def sizes(self) -> tuple[int, ...]:
        """Numbers of slots that steps run, ascending."""
        sizes = []
        size = 1
        while size < self.slots:
            sizes.append(size)
            size *= SIZE_STEP
        return (*sizes, self.slots)

    def size_for(self, slots: int) -> int:
        """The smallest size of a step that has slots 0 … `slots` - 1."""
        return next(size for size in self.sizes() if size >= slots)


class Chain:
    """The geometries that batches of one mode may have, by bucket. Those of later buckets have fewer slots."""

    def __init__(self, rows: int, max_rows: int, max_tokens: int, positions: int, *, tree: bool) -> None:
        """rows: k, of each sentence. max_rows: of a batch. max_tokens: bound on slots × k × T or slots × k × S,
        whichever is larger; a single sentence may exceed it. positions: most positions of the model. tree: whether
        target positions are a tree's nodes.
        """
        most = round_up(positions, ROUND_ROOM)
        self.rows = rows
        self.buckets: list[tuple[Geometry, ...]] = []
        """Per bucket: its geometry, or its tight and its full tree."""
        source = min(FIRST_SOURCE, most)
        target = min(FIRST_TARGET, most)
        while True:
            slots = max(1, min(max_rows // rows, max_tokens // (rows * max(source, target))))
            layouts = [0]
            if tree:
                layouts = [target, rows * target] if rows > 1 else [target]
            self.buckets.append(
                tuple(
                    Geometry(rows, slots, source, target, nodes, len(self.buckets), bool(full))
                    for full, nodes in enumerate(layouts)
                )
            )
            if source == target == most:
                return
            source = min(2 * source, most)
            target = min(2 * target, most)

    def __iter__(self) -> Iterator[Geometry]:
        """All geometries, those of the first bucket first."""
        return chain.from_iterable(self.buckets)

    def bucket_for(self, source: int, limit: int) -> int:
        """The first bucket with room for a sentence of `source` tokens (EOS included) and at most `limit` tokens of
        translation. Raises ValueError for a sentence longer than the model's positions."""
        for bucket, (geometry, *_) in enumerate(self.buckets):
            if source <= geometry.source and limit <= geometry.target:
                return bucket
        raise ValueError(f"no room for {source} source and {limit} target tokens")

    def slots(self, bucket: int) -> int:
        """Sentences that a batch with this bucket can have."""
        return self.buckets[bucket][0].slots

    def geometry(self, bucket: int, present: Geometry | None = None, nodes: int = 0) -> Geometry:
        """The smallest geometry that has the rooms of this bucket, at least `nodes` nodes, and all rooms of the
        `present` one; a batch without sentences has no present one. Raises ValueError for too many nodes."""
        fewest = (0, 0, 0) if present is None else (present.source, present.target, present.nodes)
        full = present is not None and present.full  # a full tree stays full
        for geometry in chain.from_iterable(self.buckets[bucket:]):
            if geometry.full < full:
                continue
            rooms = geometry.source, geometry.target, geometry.nodes
            enough = geometry.nodes >= nodes or not geometry.nodes
            if enough and all(room >= least for room, least in zip(rooms, fewest, strict=True)):
                return geometry
        raise ValueError(f"no geometry has {nodes} nodes")

    def path(self, present: Geometry, wanted: Geometry) -> list[Geometry]:
        """The geometries through which caches grow from one to the other, `wanted` last: each lies in another pool than
        the one before. There is at most one geometry between them."""
        if present == wanted:
            return []
        if present.pool != wanted.pool:
            return [wanted]
        if present.full == wanted.full:
            return [self.buckets[wanted.bucket - 1][wanted.full], wanted]
        return [self.buckets[wanted.bucket][present.full], wanted]

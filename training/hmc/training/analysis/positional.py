"""Positional heads: those whose largest weight is at one relative position (Voita et al. 2019, section 5.1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from hmc.training.analysis.per_head import Place
from hmc.training.analysis.views import View, peaks, visible_keys

THRESHOLD = 0.9
"""Share of queries at one offset that makes a head positional."""
COVERAGE = 0.5
"""An offset is considered where at least so many of the queries see a token there."""


@dataclass(frozen=True)
class Position:
    """The relative position a head looks at most often."""

    offset: int
    """Key minus query, in tokens."""
    share: float
    """Of the queries that see a token at this offset: how many have their largest weight there."""
    share_of_all: float
    """Of all queries that were counted."""

    @property
    def positional(self) -> bool:
        """Whether this makes the head positional."""
        return self.share >= THRESHOLD


class PositionCounts:
    """Counts of the offset of the largest weight. Queries that see fewer than two tokens have no choice: not counted.

    At the edge of a sentence a head that looks at the next token has none to look at. Such queries do not count for
    that offset; with short sentences no head would reach 90 % otherwise.
    """

    def __init__(self, longest: int = 8) -> None:
        """longest: largest distance that is considered; farther peaks count as missing every offset."""
        self.longest = longest
        self._hits: dict[Place, npt.NDArray[np.int64]] = {}
        self._seen: dict[Place, npt.NDArray[np.int64]] = {}
        self._queries: dict[Place, int] = {}

    def add(self, view: View) -> None:
        """Counts the queries of one batch."""
        place, offsets = (view.kind, view.layer), range(-self.longest, self.longest + 1)
        _, at, counted = peaks(view, at_least=2)
        distance = at - torch.arange(at.size(-1), device=at.device)  # [B, H, T]
        seen = [visible_keys(view, offset) & counted for offset in offsets]  # each [B, T]
        hits = [((distance == o) & s[:, None]).sum((0, 2)) for o, s in zip(offsets, seen, strict=True)]  # each [H]
        hit_counts = torch.stack(hits, 1).cpu().numpy()
        seen_counts = torch.stack([s.sum() for s in seen]).cpu().numpy()
        self._hits[place] = self._hits[place] + hit_counts if place in self._hits else hit_counts
        self._seen[place] = self._seen[place] + seen_counts if place in self._seen else seen_counts
        self._queries[place] = self._queries.get(place, 0) + int(counted.sum())

    def best(self) -> dict[Place, list[Position]]:
        """(kind, layer) → the best position of each head."""
        return {place: [self._best(place, hits) for hits in self._hits[place]] for place in self._hits}

    def _best(self, place: Place, hits: npt.NDArray[np.int64]) -> Position:
        queries, seen = max(1, self._queries[place]), self._seen[place]
        shares = np.where(seen >= max(1, COVERAGE * queries), hits / np.maximum(seen, 1), -1.0)
        # Of equal shares the nearest offset: walk the offsets from 0 outwards.
        order = sorted(range(len(shares)), key=lambda i: (-shares[i], abs(i - self.longest), i))
        column = order[0]
        return Position(column - self.longest, float(max(0.0, shares[column])), float(hits[column] / queries))


def positions(views: Iterable[View]) -> dict[Place, list[Position]]:
    """The best position of every head over a corpus."""
    counts = PositionCounts()
    for view in views:
        counts.add(view)
    return counts.best()

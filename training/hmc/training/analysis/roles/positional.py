"""Positional heads: their largest weight is usually at one relative position (Voita et al. 2019, section 5.1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from hmc.training.analysis.common.per_head import Place
from hmc.training.analysis.common.views import View, peaks, visible_keys

THRESHOLD = 0.9
"""A head is positional if at least this share of queries has its largest weight at one offset."""
COVERAGE = 0.5
"""An offset is considered only if at least this share of the queries sees a token there."""


@dataclass(frozen=True)
class Position:
    """The relative position of a head that most queries prefer."""

    offset: int
    """Key minus query, in tokens."""
    share: float
    """Share of the queries that see a token at this offset which have their largest weight there."""
    share_of_all: float
    """Share of all counted queries which have their largest weight there."""

    @property
    def positional(self) -> bool:
        """Whether the head is positional."""
        return self.share >= THRESHOLD


class PositionCounts:
    """Counts the offset of the largest weight of every query that sees at least two tokens.

    At the end of a sentence there is no next token. Queries without a token at an offset do not count for that offset;
    otherwise no head would reach 90 % on short sentences.
    """

    def __init__(self, longest: int = 8) -> None:
        """longest: largest distance considered. A query with a farther largest weight is a miss for all offsets."""
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
        # For equal shares the nearest offset wins.
        order = sorted(range(len(shares)), key=lambda i: (-shares[i], abs(i - self.longest), i))
        column = order[0]
        return Position(column - self.longest, float(max(0.0, shares[column])), float(hits[column] / queries))


def positions(views: Iterable[View]) -> dict[Place, list[Position]]:
    """The best position of every head over a corpus."""
    counts = PositionCounts()
    for view in views:
        counts.add(view)
    return counts.best()

"""Heads that look at the rarest tokens of a sentence (Voita et al. 2019, section 5.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from hmc.artifact.errors import InvalidRequestError
from hmc.training.analysis.per_head import Place
from hmc.training.analysis.views import TokenPair, View, peaks
from hmc.training.parallel_text import corpus_files, read_pairs
from hmc.training.vocabulary import Vocabulary

FREQUENT = 500
"""Only sentences count whose rarest token is not among so many most frequent ones."""
THRESHOLD = 0.5
"""Share of queries at one of the two rarest tokens that makes a rare-word head (the paper's heads: > 50 % and 83 %)."""
MARGIN = 0.1
"""… which must also be so much above chance, since in a short sentence any token is one of the two rarest."""


@dataclass(frozen=True)
class RareWords:
    """How often a head looks at the rarest tokens."""

    rarest: float
    """Share of queries whose largest weight is at the rarest token."""
    two_rarest: float
    """… at one of the two rarest."""
    chance: float
    """Share of a sentence's tokens that are one of its two rarest: what a head that looks anywhere would reach."""
    queries: int
    sentences: int

    @property
    def rare(self) -> bool:
        """Whether this makes the head a rare-word head."""
        return self.queries > 0 and self.two_rarest >= max(THRESHOLD, self.chance + MARGIN)


def token_counts(corpus: str, vocabulary: Vocabulary, languages: tuple[str, str]) -> npt.NDArray[np.int64]:
    """`[S]`, S source tokens: how often each occurs in the source side of a corpus, or in one plain text file.

    Raises InvalidRequestError.
    """
    files = corpus_files(corpus)
    if len(files) == 1 and ".tsv" not in files[0].name:
        corpus = f"{corpus} {corpus}"  # one file: its own other side
    own = vocabulary.source_size
    counts = np.zeros(len(vocabulary) if own is None else own, np.int64)
    for source, _ in read_pairs(corpus, languages):
        np.add.at(counts, vocabulary.encode(source)[:-1], 1)
    if not counts.any():
        raise InvalidRequestError(
            f"frequency corpus {corpus!r} holds no text; give the training text of the source side"
        )
    return counts


@dataclass(frozen=True)
class _Marks:
    """Which tokens of a sentence are its rarest."""

    rarest: list[bool]
    two_rarest: list[bool]


class RareWordCounts:
    """Counts over encoder self-attention. A token is as rare as its type; equally rare types are rare together."""

    def __init__(self, pairs: Sequence[TokenPair], counts: npt.NDArray[np.int64], frequent: int = FREQUENT) -> None:
        """counts: `[S]` occurrences of source tokens in the training text. frequent: see `FREQUENT`."""
        order = np.argsort(-counts, kind="stable")
        often = set(order[:frequent].tolist())
        self._marks = [self._mark(pair.source[:-1], counts, often) for pair in pairs]
        self.sentences = sum(mark is not None for mark in self._marks)
        self._sums: dict[Place, npt.NDArray[np.float64]] = {}
        self._totals: dict[Place, npt.NDArray[np.float64]] = {}

    @staticmethod
    def _mark(ids: list[int], counts: npt.NDArray[np.int64], often: set[int]) -> _Marks | None:
        """None for sentences that do not count: a frequent rarest token, or fewer than three types."""
        types = sorted(set(ids), key=lambda i: (counts[i], i))
        if len(types) < 3 or types[0] in often:
            return None
        first, second = counts[types[0]], counts[types[1]]
        return _Marks([bool(counts[i] <= first) for i in ids], [bool(counts[i] <= second) for i in ids])

    def add(self, view: View) -> None:
        """Counts the queries of one batch; views of other kinds are passed over."""
        if view.kind != "encoder_self":
            return
        shape = (len(view.rows), view.weights.size(-1))
        rarest, two, usable = np.zeros(shape, bool), np.zeros(shape, bool), np.zeros(shape[0], bool)
        for number, row in enumerate(view.rows):
            if (marks := self._marks[row]) is not None:
                rarest[number, : len(marks.rarest)] = marks.rarest
                two[number, : len(marks.two_rarest)] = marks.two_rarest
                usable[number] = True
        device = view.weights.device
        _, at, counted = peaks(view, at_least=2)
        counted = counted & torch.from_numpy(usable).to(device)[:, None]  # [B, T]
        sums = []
        for mask in (rarest, two):
            hit = torch.from_numpy(mask).to(device)[:, None, :].expand(*at.shape[:2], -1).gather(2, at)  # [B, H, T]
            sums.append((hit & counted[:, None]).sum((0, 2)).cpu().numpy())
        keys = view.visible.sum(-1).clamp(min=1)  # [B, T]
        chance = float(((torch.from_numpy(two).to(device).sum(-1, keepdim=True) / keys) * counted).sum())
        place = (view.kind, view.layer)
        found, total = np.stack(sums, 1).astype(np.float64), np.array([chance, float(counted.sum())])
        self._sums[place] = self._sums[place] + found if place in self._sums else found
        self._totals[place] = self._totals[place] + total if place in self._totals else total

    def shares(self) -> dict[Place, list[RareWords]]:
        """(encoder_self, layer) → the shares of each head."""
        found = {}
        for place, sums in self._sums.items():
            chance, queries = self._totals[place]
            at_least_one = max(1.0, queries)
            found[place] = [
                RareWords(
                    float(first / at_least_one), float(two / at_least_one), float(chance / at_least_one), int(queries),
                    self.sentences,
                )
                for first, two in sums
            ]  # fmt: skip
        return found


def rare_words(
    views: Iterable[View], pairs: Sequence[TokenPair], counts: npt.NDArray[np.int64], frequent: int = FREQUENT
) -> dict[Place, list[RareWords]]:
    """The shares of every encoder head over a corpus."""
    counter = RareWordCounts(pairs, counts, frequent)
    for view in views:
        counter.add(view)
    return counter.shares()

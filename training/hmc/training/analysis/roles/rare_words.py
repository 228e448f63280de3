"""Heads that look at the rarest tokens of a sentence (Voita et al. 2019, section 5.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from hmc.artifact.errors import InvalidRequestError
from hmc.training.analysis.common.result import Place, add_to
from hmc.training.analysis.common.views import TokenPair, View, peaks
from hmc.training.data.parallel_text import corpus_names, is_by_rows, read_pairs
from hmc.training.data.vocabulary import Vocabulary

FREQUENT = 500
"""A sentence counts only if its rarest token is not among this many most frequent tokens."""
THRESHOLD = 0.5
"""A rare-word head has its largest weight at one of the two rarest tokens for at least this share of queries. The heads
in the paper reach more than 50 % and 83 %."""
MARGIN = 0.1
"""The share must also be this much above chance, because in a short sentence many tokens are among the two rarest."""


@dataclass(frozen=True)
class RareWords:
    """How often the largest weight of a head is at the rarest tokens."""

    rarest: float
    """Share of queries whose largest weight is at the rarest token."""
    two_rarest: float
    """Share of queries whose largest weight is at one of the two rarest tokens."""
    chance: float
    """Value of `two_rarest` by chance: the share of visible tokens that are one of the two rarest."""
    queries: int
    sentences: int

    @property
    def rare(self) -> bool:
        """Whether the head is a rare-word head."""
        return self.queries > 0 and self.two_rarest >= max(THRESHOLD, self.chance + MARGIN)


def token_counts(corpus: str, vocabulary: Vocabulary, languages: tuple[str, str]) -> npt.NDArray[np.int64]:
    """How often each token of the source vocabulary occurs in a corpus's source side, or in one plain text file.

    Returns counts by token id. Raises InvalidRequestError for a corpus that cannot be read or holds no text.
    """
    names = corpus_names(corpus)
    if len(names) == 1 and ".tsv" not in names[0].name and not is_by_rows(corpus):
        corpus = f"{corpus} {corpus}"  # the same file as both sides; the target side is not used
    own = vocabulary.source_size
    counts = np.zeros(len(vocabulary) if own is None else own, np.int64)
    for source, _ in read_pairs(corpus, languages):
        np.add.at(counts, vocabulary.encode(source)[:-1], 1)
    if not counts.any():
        raise InvalidRequestError(
            f"frequency corpus {corpus!r} holds no text; give the training text of the source side"
        )
    return counts


class RareWordCounts:
    """Counts over encoder self-attention. A token is as rare as its type; equally rare types have the same rank."""

    def __init__(self, pairs: Sequence[TokenPair], counts: npt.NDArray[np.int64], frequent: int = FREQUENT) -> None:
        """counts: occurrences in the training text by source token id. frequent: see `FREQUENT`."""
        order = np.argsort(-counts, kind="stable")
        often = set(order[:frequent].tolist())
        self._marks = [self._mark(pair.source[:-1], pair.languages[0], counts, often) for pair in pairs]
        self.sentences = sum(mark is not None for mark in self._marks)
        self._sums: dict[Place, npt.NDArray[np.float64]] = {}
        self._totals: dict[Place, npt.NDArray[np.float64]] = {}

    @staticmethod
    def _mark(
        ids: list[int], languages: int, counts: npt.NDArray[np.int64], often: set[int]
    ) -> npt.NDArray[np.bool_] | None:
        """`[2, T]` for each token of a sentence: whether it is the rarest, and whether it is one of the two rarest.

        None for sentences that do not count: their rarest token is frequent, or they have fewer than three types.

        languages: the number of tokens at the start that name a language; they are no words.
        """
        types = sorted(set(ids[languages:]), key=lambda i: (counts[i], i))
        if len(types) < 3 or types[0] in often:
            return None
        rare: npt.NDArray[np.bool_] = counts[ids] <= counts[types[:2]][:, None]
        rare[:, :languages] = False
        return rare

    def add(self, view: View) -> None:
        """Counts the queries of one batch. Views of the decoder's attentions are ignored."""
        if view.kind != "encoder_self":
            return
        rare = torch.zeros(2, len(view.rows), view.weights.size(-1), dtype=torch.bool)
        usable = torch.zeros(len(view.rows), dtype=torch.bool)
        for number, row in enumerate(view.rows):
            if (marks := self._marks[row]) is not None:
                rare[:, number, : marks.shape[1]] = torch.from_numpy(marks)
                usable[number] = True
        rare = rare.to(view.weights.device)
        _, at, counted = peaks(view, at_least=2)
        counted = counted & usable.to(at.device)[:, None]  # [B, T]
        sums = []
        for mask in rare:
            hit = mask[:, None, :].expand(*at.shape[:2], -1).gather(2, at)  # [B, H, T]
            sums.append((hit & counted[:, None]).sum((0, 2)).cpu().numpy())
        keys = view.visible.sum(-1).clamp(min=1)  # [B, T]
        chance = float(((rare[1].sum(-1, keepdim=True) / keys) * counted).sum())
        place = (view.kind, view.layer)
        add_to(self._sums, place, np.stack(sums, 1).astype(np.float64))
        add_to(self._totals, place, np.array([chance, float(counted.sum())]))

    def shares(self) -> dict[Place, list[RareWords]]:
        """(encoder_self, layer) → the shares of each head."""
        shares = {}
        for place, sums in self._sums.items():
            chance, queries = self._totals[place].tolist()
            at_least_one = max(1.0, queries)
            shares[place] = [
                RareWords(first, two, chance / at_least_one, int(queries), self.sentences)
                for first, two in (sums / at_least_one).tolist()
            ]
        return shares


def rare_words(
    views: Iterable[View], pairs: Sequence[TokenPair], counts: npt.NDArray[np.int64], frequent: int = FREQUENT
) -> dict[Place, list[RareWords]]:
    """The shares of every encoder head over a corpus."""
    counter = RareWordCounts(pairs, counts, frequent)
    for view in views:
        counter.add(view)
    return counter.shares()

"""Roles of every head: positional, syntactic, rare words (Voita et al. 2019, section 5). A head may have several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import HeadLayout
from hmc.training.analysis.common.records import HeadRoles, Role, RolesData
from hmc.training.analysis.common.result import (
    CorpusSource,
    Place,
    Result,
    add_to,
    corpus_source,
    in_order,
    model_shape,
)
from hmc.training.analysis.common.subject import Progress, Subject, Text, silent
from hmc.training.analysis.common.summary import Summary
from hmc.training.analysis.common.views import READS, TokenPair, View, corpus_views, peaks, tokenize, visible_keys
from hmc.training.analysis.roles.conllu import Tree
from hmc.training.analysis.roles.rare_words import FREQUENT, RareWordCounts, RareWords
from hmc.training.analysis.roles.syntactic import SyntaxCounts, syntax

THRESHOLD = 0.9
"""A head is positional if at least this share of queries has its largest weight at one offset."""
COVERAGE = 0.5
"""An offset is considered only if at least this share of the queries sees a token there."""
LONGEST = 8
"""Largest offset considered. A query with a farther largest weight is a miss for all offsets."""
COMMAND = "roles"
ROLES = ("positional", "syntactic", "rare words")
"""Names of the roles, in the order in which a head's roles are listed."""
ENDS = {"nsubj": ("v", "s"), "obj": ("v", "o"), "amod": ("n", "a"), "advmod": ("v", "adv")}
"""Head and dependent of each relation, abbreviated as in the paper."""


@dataclass(frozen=True)
class Trees:
    """The trees of a treebank, and its digest."""

    trees: tuple[Tree, ...]
    source: CorpusSource

    @classmethod
    def named(cls, name: str, trees: Iterable[Tree]) -> Trees:
        """name: the file as the user gave it. Raises InvalidRequestError for a treebank without trees."""
        kept = tuple(trees)
        if not kept:
            raise InvalidRequestError(f"treebank {name} has no sentence; give a CoNLL-U file with gold trees")
        lines = []
        for tree in kept:
            words = (f"{word.head} {word.relation}" for word in tree.words)
            lines.append((tree.text, *words))
        return cls(kept, corpus_source(name, lines))


@dataclass(frozen=True)
class Frequencies:
    """Frequencies of tokens in the training text, which decide which tokens are rare."""

    counts: npt.NDArray[np.int64]
    """`[V]` occurrences in the training text."""
    name: str
    """The training text as the user gave it."""
    frequent: int = FREQUENT
    """Sentences whose rarest token is among this many most frequent tokens do not count."""

    def __post_init__(self) -> None:
        if self.frequent < 0:
            raise InvalidRequestError(f"frequent must be 0 or more, not {self.frequent}")


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

    A positional head has its largest weight usually at one offset (Voita et al. 2019, section 5.1).
    At the end of a sentence there is no next token. Queries without a token at an offset do not count for that offset;
    otherwise no head would reach 90 % on short sentences.
    """

    def __init__(self) -> None:
        self._hits: dict[Place, npt.NDArray[np.int64]] = {}
        self._seen: dict[Place, npt.NDArray[np.int64]] = {}
        self._queries: dict[Place, int] = {}

    def add(self, view: View) -> None:
        """Counts the queries of one batch."""
        place = (view.kind, view.layer)
        offsets = range(-LONGEST, LONGEST + 1)
        _, at, counted = peaks(view, at_least=2)
        distance = at - torch.arange(at.size(-1), device=at.device)  # [B, H, T]
        seen = [visible_keys(view, offset) & counted for offset in offsets]  # each [B, T]
        hits = [((distance == o) & s[:, None]).sum((0, 2)) for o, s in zip(offsets, seen, strict=True)]  # each [H]
        hit_counts = torch.stack(hits, 1).cpu().numpy()
        seen_counts = torch.stack([s.sum() for s in seen]).cpu().numpy()
        add_to(self._hits, place, hit_counts)
        add_to(self._seen, place, seen_counts)
        self._queries[place] = self._queries.get(place, 0) + int(counted.sum())

    def best(self) -> dict[Place, list[Position]]:
        """(kind, layer) → the best position of each head."""
        best = {}
        for place, of_heads in self._hits.items():
            best[place] = [self._best(place, hits) for hits in of_heads]
        return best

    def _best(self, place: Place, hits: npt.NDArray[np.int64]) -> Position:
        queries = max(1, self._queries[place])
        seen = self._seen[place]
        shares = np.where(seen >= max(1, COVERAGE * queries), hits / np.maximum(seen, 1), -1.0)
        # For equal shares the nearest offset wins.
        order = sorted(range(len(shares)), key=lambda i: (-shares[i], abs(i - LONGEST), i))
        column = order[0]
        return Position(column - LONGEST, float(max(0.0, shares[column])), float(hits[column] / queries))


def positions(views: Iterable[View]) -> dict[Place, list[Position]]:
    """The best position of every head over a corpus."""
    counts = PositionCounts()
    for view in views:
        counts.add(view)
    return counts.best()


@dataclass(frozen=True)
class Roles:
    """Measurements per attention and head; empty or None where the input for a role was not given."""

    positions: Mapping[Place, Sequence[Position]]
    rare: Mapping[Place, Sequence[RareWords]]
    syntax: SyntaxCounts | None

    def rows(self, layout: HeadLayout) -> list[HeadRoles]:
        """For each head of `layout.heads()`: its roles, and the numbers from which they follow."""
        accuracies = self.syntax.accuracies() if self.syntax else {}
        rows = []
        for head, position in zip(layout.heads(), in_order(self.positions, layout), strict=True):
            row = HeadRoles(**asdict(head), roles=[], position=asdict(position))
            place = (head.kind, head.layer)
            at = layout[head.kind][head.layer].index(head.index)
            if position.positional:
                row.roles.append(Role(role="positional", offset=position.offset))
            if place in accuracies:
                row.syntax = list(map(asdict, accuracies[place][at]))
                syntactic = [accuracy for accuracy in accuracies[place][at] if accuracy.syntactic]
                for best in sorted(syntactic, key=lambda accuracy: accuracy.baseline - accuracy.accuracy):
                    row.roles.append(Role(role="syntactic", relation=best.relation, direction=best.direction))
            if place in self.rare:
                rare = self.rare[place][at]
                row.rare_words = asdict(rare)
                if rare.rare:
                    row.roles.append(Role(role="rare words"))
            rows.append(row)
        return rows


def head_roles(
    subject: Subject,
    pairs: Sequence[TokenPair],
    trees: Iterable[Tree] | None = None,
    frequencies: Frequencies | None = None,
    progress: Progress = silent,
) -> Roles:
    """Measures positions for heads of all three kinds, and syntax and rare words for encoder self-attention.

    pairs: sentences, and the translations that the decoder reads. trees, frequencies: None leaves that role out. If
    sources name a language, trees are read with the language of the first sentence. Raises InvalidRequestError if no
    tree can be used, and for hidden states that are NaN.
    """
    positions = PositionCounts()
    rare = RareWordCounts(pairs, frequencies.counts, frequencies.frequent) if frequencies else None
    for view in corpus_views(subject.model, pairs, progress):
        positions.add(view)
        if rare is not None:
            rare.add(view)
    counted = None
    if trees is not None:
        opening = pairs[0].source[: pairs[0].languages[0]]
        counted = syntax(subject, trees, opening, progress)
    return Roles(positions.best(), rare.shares() if rare is not None else {}, counted)


def analyse(
    subject: Subject,
    text: Text,
    trees: Trees | None = None,
    frequencies: Frequencies | None = None,
    *,
    forced: bool = False,
    progress: Progress = silent,
) -> Result[RolesData]:
    """The roles of every open head.

    forced: the decoder reads the references in place of the model's own greedy translations. Raises as `head_roles`,
    and InvalidArtifactError for NaN weights.
    """
    prepared = tokenize(subject, text, forced=forced, progress=progress)
    roles = head_roles(subject, prepared.pairs, trees.trees if trees else None, frequencies, progress)
    corpora = [text.source]
    looked_for = compress(ROLES, (True, trees is not None, frequencies is not None))
    data = RolesData(
        **model_shape(subject.checkpoint),
        heads=roles.rows(subject.layout),
        looked_for=list(looked_for),
        sentences_cut=prepared.cut,
        treebank=roles.syntax.to_json() if roles.syntax else None,
    )
    settings: dict[str, Any] = {"decoder_reads": READS[forced]}
    if trees:
        corpora.append(trees.source)
    if frequencies:
        settings |= {"frequencies": frequencies.name, "frequent": frequencies.frequent}
    return subject.result(COMMAND, *corpora, settings=settings, data=data)


def role_label(role: Role) -> str:
    """A role as a short label: `+1`, `v→s` or `rare`."""
    if role.role == "positional":
        return f"{role.offset:+d}" if role.offset else "0"
    if role.relation:
        head, dependent = ENDS[role.relation]
        return f"{head}→{dependent}" if role.direction == "from_head" else f"{dependent}→{head}"
    return "rare"


def summary(result: Result[RolesData]) -> Summary:
    """One row per head that has a role."""
    rows = []
    counted = Counter[str]()
    for row in result.data.heads:
        if row.roles:
            rows.append((str(row.head), ", ".join(map(role_label, row.roles))))
            counted.update({role.role for role in row.roles})
    counts = ", ".join(f"{counted[name]} {name}" for name in result.data.looked_for)
    notes = [f"{len(rows)} of {len(result.data.heads)} heads have a role: {counts}"]
    missing = [name for name in ROLES if name not in result.data.looked_for]
    if missing:
        notes.append(f"not looked for: {', '.join(missing)} (needs --trees, --frequencies)")
    return Summary("Roles of heads", ("head", "roles"), tuple(rows), tuple(notes))

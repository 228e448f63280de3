"""Heads that follow a dependency relation (Voita et al. 2019, section 5.2), against gold trees.

Attention to a word is the sum over its tokens. Attention from a word is the mean over its tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.tokenizer.files import SOURCE, TOKENIZER
from hmc.artifact.tokenizer.tokenizer import load_pieces
from hmc.training.analysis.common.masks import sentence_groups
from hmc.training.analysis.common.result import Place, add_to
from hmc.training.analysis.common.subject import Progress, Subject, silent
from hmc.training.analysis.common.trace import trace_encoder
from hmc.training.analysis.roles.conllu import Tree
from hmc.training.data.batches import pad_rows
from hmc.training.data.vocabulary import Vocabulary

Span = tuple[int, int]
RELATIONS: dict[str, tuple[str, ...]] = {
    "nsubj": ("nsubj",),
    "obj": ("obj", "dobj"),
    "amod": ("amod",),
    "advmod": ("advmod",),
}
"""Relation → its labels in treebanks. `obj` of Universal Dependencies 2 was `dobj` in version 1. Subtypes such as
`nsubj:pass` do not count as the relation."""
Direction = Literal["from_head", "from_dependent"]
DIRECTIONS: tuple[Direction, ...] = ("from_head", "from_dependent")
"""The end of the relation that is the query; the other end is the key."""
TASKS = tuple(product(RELATIONS, DIRECTIONS))
MARGIN = 0.1
"""A syntactic head is at least this much more accurate than the positional baseline."""
FEWEST = 20
"""A relation with fewer occurrences gives no head a role."""


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of one head for one relation in one direction."""

    relation: str
    direction: Direction
    accuracy: float
    """Share of the words with this relation whose largest weight is at its other end."""
    baseline: float
    """The share for a largest weight always at the best fixed offset."""
    offset: int
    """That offset, in words (units)."""
    cases: int

    @property
    def syntactic(self) -> bool:
        """Whether the head is syntactic by this relation and direction."""
        return self.cases >= FEWEST and self.accuracy >= self.baseline + MARGIN


class SyntaxCounts:
    """Counts over a treebank. A word with several dependents of one relation counts once; each of them is a hit."""

    def __init__(self) -> None:
        self.sentences = 0
        self.joined = 0
        self.skipped = 0
        """Number of sentences counted, of words in units of several words, and of sentences left out.

        A sentence is left out if it is too long or has a word without tokens.
        """
        self._hits: dict[Place, npt.NDArray[np.int64]] = {}
        self._cases = np.zeros(len(TASKS), np.int64)
        self._offsets: list[Counter[int]] = [Counter() for _ in TASKS]

    def sentence(self, tree: Tree, units: Units) -> Tensor:
        """Counts a sentence's relations and returns them: `[8, U, U]`, True where query and key are the two ends."""
        relations = np.zeros((len(TASKS), units.count, units.count), bool)
        for dependent, word in enumerate(tree.words):
            name = next((r for r, labels in RELATIONS.items() if word.relation in labels), None)
            if name is None or word.head < 0:
                continue
            ends = units.unit_of_word[word.head], units.unit_of_word[dependent]
            if ends[0] != ends[1]:
                relations[TASKS.index((name, "from_head"))][ends] = True
                relations[TASKS.index((name, "from_dependent"))][ends[::-1]] = True
        self.sentences += 1
        sizes = Counter(units.unit_of_word)
        self.joined += sum(size for size in sizes.values() if size > 1)
        self._cases += relations.any(2).sum(1)
        for counter, task in zip(self._offsets, relations, strict=True):
            query, key = task.nonzero()
            counter.update((key - query).tolist())
        return torch.from_numpy(relations)

    def attention(self, place: Place, words: Tensor, relations: Tensor) -> None:
        """words `[H, U, U]`: attention between units; relations as `sentence` returned them."""
        at = words.argmax(-1).cpu()  # [H, U]
        hit = relations[:, torch.arange(at.size(1)), at]  # [8, H, U]
        hits = hit.sum(2).numpy()
        add_to(self._hits, place, hits)

    def accuracies(self) -> dict[Place, list[list[Accuracy]]]:
        """(encoder_self, layer) → for each head, its accuracy in every task."""
        accuracies: dict[Place, list[list[Accuracy]]] = {}
        for place, hits in self._hits.items():
            accuracies[place] = []
            for of_head in hits.T.tolist():
                accuracies[place].append([self._accuracy(task, number) for task, number in enumerate(of_head)])
        return accuracies

    def _accuracy(self, task: int, hits: int) -> Accuracy:
        relation, direction = TASKS[task]
        cases = int(self._cases[task])
        # Of equally frequent offsets the nearest is taken. An offset occurs at most once per query.
        offset, best = min(
            self._offsets[task].items(), key=lambda item: (-item[1], abs(item[0]), item[0]), default=(0, 0)
        )
        return Accuracy(relation, direction, hits / max(1, cases), best / max(1, cases), offset, cases)

    def to_json(self) -> dict[str, Any]:
        """Numbers of sentences and words counted, and the distances of dependents."""
        return {
            "sentences": self.sentences,
            "sentences_left_out": self.skipped,
            "words_in_shared_units": self.joined,
            "distances": self.distances(),
        }

    def distances(self) -> dict[str, dict[str, float]]:
        """Relation → offset from the head to the dependent, in words → share (the paper's figure 3)."""
        distances = {}
        for (relation, direction), counter in zip(TASKS, self._offsets, strict=True):
            if direction == "from_head":
                total = max(1, counter.total())
                distances[relation] = {str(offset): count / total for offset, count in sorted(counter.items())}
        return distances


@torch.no_grad()
def syntax(
    subject: Subject, trees: Iterable[Tree], opening: Sequence[int] = (), progress: Progress = silent
) -> SyntaxCounts:
    """Counts every encoder head over `trees`, which are in the source language.

    opening: language tokens at the beginning of this model's sources, which are no text. Raises InvalidRequestError if
    no sentence can be counted.
    """
    model = subject.model
    pieces = SourcePieces(subject.vocabulary)
    counts = SyntaxCounts()
    first = len(opening)
    arch = model.arch
    device = model.shared.weight.device
    usable: list[tuple[Tree, Units]] = []
    for tree in trees:
        units = tree_units(tree, pieces)
        if units is None or first + len(units.ids) >= arch.max_positions:
            counts.skipped += 1
        else:
            usable.append((tree, units))
    if not usable:
        raise InvalidRequestError(
            f"none of the {counts.skipped} sentences of the treebank can be used: they are too long for the model, or "
            "words have no tokens; is it in the source language?"
        )
    for rows in sentence_groups([len(units.ids) for _, units in usable]):
        group = [usable[row] for row in rows]
        ids = [[*opening, *units.ids, arch.eos_id] for _, units in group]
        source = pad_rows(ids, arch.pad_id).to(device)
        relations = [counts.sentence(tree, units) for tree, units in group]
        for step in trace_encoder(model, source).attentions():
            if step.heads is None:
                continue
            for row, (_, units) in enumerate(group):
                tokens = slice(first, first + len(units.ids))
                words = units.word_attention(step.heads.weights[row, :, tokens, tokens])
                counts.attention((step.kind, step.layer), words, relations[row])
        progress(f"syntax: {counts.sentences} of {len(usable)} sentences")
    return counts


class SourcePieces:
    """Tokenises source texts, with the place of every token in the text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises InvalidArtifactError when the tokenizer cannot be read."""
        files = vocabulary.files
        self._vocabulary = vocabulary
        self._pieces = load_pieces(files, TOKENIZER) if isinstance(files, bytes) else load_pieces(files.source, SOURCE)

    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids without language token and EOS, and for each id its characters in the text, (start, end), without
        leading spaces.

        A token may have no characters: a single space, or a part of a character that was normalised to several.
        """
        spans = []
        position = 0
        # The surfaces of all pieces, joined, are the text.
        for piece in self._pieces.encode(text, return_type="proto").pieces:
            end = position + len(piece.surface)
            spans.append((end - len(piece.surface.lstrip()), end))
            position = end
        ids = self._vocabulary.encode(text)
        return ids[len(self._vocabulary.source_opening(ids)) : -1], spans


@dataclass(frozen=True)
class Units:
    """A sentence as a list of U units. A unit is one word, or several words that share a token."""

    ids: list[int]
    """Token ids, without EOS."""
    unit_of_token: list[int]
    """Unit of each token."""
    unit_of_word: list[int]
    """Unit of each word."""
    count: int
    """U, the number of units."""

    def word_attention(self, weights: Tensor) -> Tensor:
        """weights `[H, T, T]` between the tokens of the sentence (EOS left out) → `[H, U, U]` between units."""
        member = torch.zeros(self.count, len(self.ids), dtype=weights.dtype, device=weights.device)
        member[self.unit_of_token, torch.arange(len(self.ids), device=weights.device)] = 1.0
        to_words = weights @ member.T  # [H, T, U]
        return (member / member.sum(1, keepdim=True)) @ to_words


def tree_units(tree: Tree, pieces: SourcePieces) -> Units | None:
    """The units of a tree's text, or None (see `make_units`)."""
    ids, spans = pieces.spans(tree.text)
    return make_units(ids, spans, [(word.start, word.end) for word in tree.words])


def make_units(ids: Sequence[int], tokens: Sequence[Span], words: Sequence[Span]) -> Units | None:
    """Units from the ids and spans of tokens and the spans of words, in characters of the same text.

    Words that overlap the same token, or each other, are one unit. A token without characters (see
    `SourcePieces.spans`) belongs to the first word that ends after it, else to the last word. The result is None if a
    word has no token, for example because the tokenizer removed its only character.
    """
    if not words or len(ids) != len(tokens):
        return None
    touched = [_touched(span, words) for span in tokens]
    joined = [False] * len(words)  # joined[i]: word i is one unit with word i - 1
    for first, last in touched:
        for word in range(first + 1, last + 1):
            joined[word] = True
    for word in range(1, len(words)):
        joined[word] |= words[word][0] < words[word - 1][1]
    unit_of_word = []
    unit = -1
    for together in joined:
        unit += not together
        unit_of_word.append(unit)
    unit_of_token = [unit_of_word[first] for first, _ in touched]
    if set(unit_of_token) != set(unit_of_word):
        return None
    return Units(list(ids), unit_of_token, unit_of_word, unit + 1)


def _touched(token: Span, words: Sequence[Span]) -> Span:
    """First and last word that overlap the token, or its word twice if it has no characters."""
    overlapping = [i for i, (start, end) in enumerate(words) if start < token[1] and token[0] < end]
    if overlapping:
        return overlapping[0], overlapping[-1]
    following = next((i for i, (_, end) in enumerate(words) if end > token[1]), len(words) - 1)
    return following, following

"""Attention between words: the tokens of each word of a tree, and sums of attention weights over them.

Attention to a word is the sum over its tokens. Attention from a word is the mean over its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hmc.artifact.tokenizer.files import SOURCE, TOKENIZER
from hmc.artifact.tokenizer.tokenizer import load_pieces
from hmc.training.analysis.roles.conllu import Tree
from hmc.training.data.vocabulary import Vocabulary

Span = tuple[int, int]


class SourcePieces:
    """Tokenises source texts, with the place of every token in the text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises InvalidArtifactError when the tokenizer cannot be read."""
        files = vocabulary.files
        self._vocabulary = vocabulary
        self._pieces = load_pieces(files, TOKENIZER) if isinstance(files, bytes) else load_pieces(files.source, SOURCE)

    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids without EOS, and for each its characters in the text as (start, end), without leading spaces.

        A token may have no characters: a single space, or a part of a character that was normalised to several.
        """
        spans, position = [], 0
        # The surfaces of all pieces, joined, are the text.
        for piece in self._pieces.encode(text, return_type="proto").pieces:
            end = position + len(piece.surface)
            spans.append((end - len(piece.surface.lstrip()), end))
            position = end
        return self._vocabulary.encode(text)[:-1], spans


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
    unit_of_word, unit = [], -1
    for together in joined:
        unit += not together
        unit_of_word.append(unit)
    unit_of_token = [unit_of_word[first] for first, _ in touched]
    if set(unit_of_token) != set(unit_of_word):
        return None
    return Units(list(ids), unit_of_token, unit_of_word, unit + 1)


def _touched(token: Span, words: Sequence[Span]) -> Span:
    """First and last word that overlap the token, or its word twice if it has no characters."""
    found = [i for i, (start, end) in enumerate(words) if start < token[1] and token[0] < end]
    if found:
        return found[0], found[-1]
    following = next((i for i, (_, end) in enumerate(words) if end > token[1]), len(words) - 1)
    return following, following

"""From tokens to words: which tokens of the model make up which words of a tree, and attention between words.

Attention to a word is the sum over its tokens, attention from a word the mean over its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hmc.training.analysis.conllu import Tree
from hmc.training.analysis.pieces import SourcePieces

Span = tuple[int, int]


@dataclass(frozen=True)
class Units:
    """A sentence cut into units: one word, or several that share a token and cannot be told apart."""

    ids: list[int]
    """Token ids, without EOS."""
    unit_of_token: list[int]
    unit_of_word: list[int]
    count: int

    def word_attention(self, weights: Tensor) -> Tensor:
        """weights `[H, T, T]` between the tokens of the sentence (EOS left out) → `[H, U, U]` between units."""
        member = torch.zeros(self.count, len(self.ids), dtype=weights.dtype, device=weights.device)
        member[self.unit_of_token, torch.arange(len(self.ids), device=weights.device)] = 1.0
        to_words = weights @ member.T  # [H, T, U]
        return (member / member.sum(1, keepdim=True)) @ to_words


def tree_units(tree: Tree, pieces: SourcePieces) -> Units | None:
    """The units of a tree's text; None where they cannot be found (see `make_units`)."""
    ids, spans = pieces.spans(tree.text)
    return make_units(ids, spans, [(word.start, word.end) for word in tree.words])


def make_units(ids: Sequence[int], tokens: Sequence[Span], words: Sequence[Span]) -> Units | None:
    """ids and spans of the tokens, spans of the words, in characters of one text.

    Words that overlap one token, or each other, are joined. A token without characters (a lone space, the rest of a
    character that was normalised to several) belongs to the next word that ends after it, else to the last word.
    None where a word has no token, as when the tokenizer normalises its only character away.
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
    """First and last word that share characters with the token."""
    found = [i for i, (start, end) in enumerate(words) if start < token[1] and token[0] < end]
    if found:
        return found[0], found[-1]
    following = next((i for i, (_, end) in enumerate(words) if end > token[1]), len(words) - 1)
    return following, following

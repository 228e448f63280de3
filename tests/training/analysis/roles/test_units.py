"""Units of words and tokens, and attention between words."""

from __future__ import annotations

import pytest
import torch
from tests.tiny import tiny_tokenizer

from hmc.artifact.tokenizer.tokenizer import open_tokenizer
from hmc.training import Vocabulary
from hmc.training.analysis.roles.conllu import Tree, Word
from hmc.training.analysis.roles.syntactic import SourcePieces, Units, make_units, tree_units


def test_tokens_within_words() -> None:
    # "ab cd": a, b, cd
    units = make_units([7, 8, 9], [(0, 1), (1, 2), (3, 5)], [(0, 2), (3, 5)])
    assert units == Units([7, 8, 9], [0, 0, 1], [0, 1], 2)


def test_words_that_share_a_token_are_one_unit() -> None:
    # "don't go": do|n't as words, don|'t as tokens
    units = make_units([1, 2, 3], [(0, 3), (3, 5), (6, 8)], [(0, 2), (2, 5), (6, 8)])
    assert units == Units([1, 2, 3], [0, 0, 1], [0, 0, 1], 2)


def test_words_with_the_same_characters_are_one_unit() -> None:
    assert make_units([1, 2], [(0, 3), (4, 5)], [(0, 3), (0, 3), (4, 5)]) == Units([1, 2], [0, 1], [0, 0, 1], 2)


def test_tokens_without_characters_go_to_the_next_word() -> None:
    # "a b": a, a lone space, b, and an empty rest at the end
    units = make_units([1, 2, 3, 4], [(0, 1), (2, 2), (2, 3), (3, 3)], [(0, 1), (2, 3)])
    assert units == Units([1, 2, 3, 4], [0, 1, 1, 1], [0, 1], 2)


def test_a_word_without_tokens_leaves_the_sentence_out() -> None:
    assert make_units([1], [(0, 1)], [(0, 1), (2, 3)]) is None
    assert make_units([], [], []) is None


def test_attention_to_a_word_is_a_sum_and_from_a_word_a_mean() -> None:
    units = Units([1, 2, 3], [0, 0, 1], [0, 1], 2)
    weights = torch.tensor([[[0.1, 0.2, 0.7], [0.3, 0.4, 0.3], [0.0, 0.5, 0.4]]])
    expected = torch.tensor([[[(0.3 + 0.7) / 2, (0.7 + 0.3) / 2], [0.5, 0.4]]])
    torch.testing.assert_close(units.word_attention(weights), expected)


@pytest.mark.parametrize("text", ["A dog’s café… isn't open", "two  spaces, 1½ Ünïts 😀 end", "人 A"])
def test_every_word_is_covered_by_its_tokens(text: str) -> None:
    pieces = SourcePieces(Vocabulary(tiny_tokenizer()))
    ids, spans = pieces.spans(text)
    assert len(ids) == len(spans)
    covered = {i for start, end in spans for i in range(start, end)}
    assert {i for i, character in enumerate(text) if not character.isspace()} <= covered
    tokenizer = open_tokenizer(tiny_tokenizer())
    for token, (start, end) in zip(ids, spans, strict=True):
        if (name := tokenizer.piece(token)).isascii() and name != "<unk>" and text[start:end].isascii() and end > start:
            assert name.lstrip("▁") == text[start:end]


def test_units_of_a_tree() -> None:
    tree = Tree("A dog's", (Word("A", 1, "det", 0, 1), Word("dog", -1, "root", 2, 5), Word("'s", 1, "x", 5, 7)))
    units = tree_units(tree, SourcePieces(Vocabulary(tiny_tokenizer())))
    assert units is not None
    assert units.unit_of_word == [0, 1, 2]
    assert units.unit_of_token[0] == 0
    assert units.unit_of_token[-1] == 2

"""Beam search with every option gives the tokens and scores of the plain reference, on tiny random models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.serving.reference import LIMIT, TEXTS, Pieces, Reference, assert_same, source_ids

from hmc.artifact import InvalidRequestError
from hmc.engine.decoding.constraints import Constraints
from hmc.serving import DecodeOptions, Translator

CASES: list[dict[str, Any]] = [
    {},
    {"beam_size": 1, "n_best": 1},
    {"min_length": 6},
    {"min_length": LIMIT},
    {"beam_size": 1, "n_best": 1, "min_length": 9, "suppress_unknown": True},
    {"length_penalty": 0.0},
    {"length_penalty": 2.5},
    {"patience": 1.0, "n_best": 2},
    {"patience": 0.5, "n_best": 2},
    {"patience": 3.0},
    {"suppress_unknown": True},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3, "beam_size": 1, "n_best": 1},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 3.0, "beam_size": 2, "n_best": 2},
    {"repetition_penalty": 0.7},
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_length": 5, "patience": 2.0, "length_penalty": 0.6},
]


def options_of(case: dict[str, Any]) -> DecodeOptions:
    fields: dict[str, Any] = {"beam_size": 4, "n_best": 4, "max_length": LIMIT, "token_scores": True}
    return DecodeOptions(**(fields | case))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_reference(
    translator: Translator, reference: Reference, pieces: Pieces, case: dict[str, Any]
) -> None:
    options = options_of(case)
    for text, found in zip(TEXTS, translator.translate(TEXTS, options, segmentation="none"), strict=True):
        expected = reference.beam_search(source_ids(pieces, text), options, limit=LIMIT)
        assert_same(found, expected, pieces, options.n_best)


def test_some_translations_end_and_some_do_not(translator: Translator) -> None:
    found = translator.translate(TEXTS, options_of({}), segmentation="none")
    lengths = {h.target_tokens for t in found for h in t.hypotheses if not h.hit_max_length}
    assert len(lengths) >= 4  # otherwise these tests would say little about ends
    assert any(t.hit_max_length for t in found)
    assert len({t.text for t in found}) >= 6


def test_all_options_in_one_batch_as_each_alone(translator: Translator) -> None:
    jobs = [(text, options_of(case)) for case in CASES for text in TEXTS]
    together = [future.result() for future in [translator.submit(t, o, block=True) for t, o in jobs]]
    for (text, options), found in zip(jobs, together, strict=True):
        alone = translator.translate([text], options, segmentation="none")[0]
        assert [t.piece for t in found.tokens] == [t.piece for t in alone.tokens], options
        assert [a.text for a in found.alternatives] == [a.text for a in alone.alternatives], options
        assert found.score == pytest.approx(alone.score, abs=1e-4)


def test_suppressed_tokens_and_phrases(translator: Translator, reference: Reference, pieces: Pieces) -> None:
    options = options_of({})
    for text in TEXTS:
        free = translator.translate([text], options, segmentation="none")[0]
        written = [t.piece for t in free.tokens if t.piece != "</s>"]
        if not written:
            continue
        first, pair = written[0], pieces.decode_pieces(written[-2:])
        strict = replace(options, suppressed_tokens=(first,), suppressed_phrases=(pair,))
        phrases = [(pieces.piece_to_id(first),), tuple(pieces.encode(pair))]
        found = translator.translate([text], strict, segmentation="none")[0]
        assert found.tokens != free.tokens
        expected = reference.beam_search(source_ids(pieces, text), strict, limit=LIMIT, phrases=phrases)
        assert_same(found, expected, pieces, 4)


def test_a_phrase_of_several_tokens_may_begin_but_not_be_completed(
    translator: Translator, reference: Reference, pieces: Pieces
) -> None:
    seen = 0
    for text in TEXTS:
        source = source_ids(pieces, text)
        for beam, words in ((1, 2), (4, 3)):
            options = options_of({"beam_size": beam, "n_best": 1})
            free = translator.translate([text], options, segmentation="none")[0]
            ids = tuple(pieces.piece_to_id(t.piece) for t in free.tokens if t.piece != "</s>")
            for start in range(len(ids) - words + 1):
                seen += 1
                phrase = ids[start : start + words]
                future = translator._engine.submit(source, options, Constraints(suppressed=(phrase,)))
                (found,) = future.result().hypotheses
                expected = reference.beam_search(source, options, limit=LIMIT, phrases=[phrase])[0]
                assert (*found.ids, 0)[: len(expected.ids)] == expected.ids
                assert found.ids != ids
                assert found.score == pytest.approx(expected.score, abs=2e-4)
    assert seen >= 30


def test_many_suppressed_tokens_leave_the_best_of_the_rest(
    translator: Translator, reference: Reference, pieces: Pieces
) -> None:
    names = [pieces.id_to_piece(i) for i in range(3, 100)]
    options = options_of({"suppressed_tokens": tuple(names), "suppress_unknown": True})
    phrases = [(i,) for i in range(3, 100)]
    for text in TEXTS:
        found = translator.translate([text], options, segmentation="none")[0]
        expected = reference.beam_search(source_ids(pieces, text), options, limit=LIMIT, phrases=phrases)
        assert_same(found, expected, pieces, 4)


def test_when_every_token_is_suppressed_the_translation_stops(translator: Translator, pieces: Pieces) -> None:
    names = tuple(pieces.id_to_piece(i) for i in range(3, 120))
    options = options_of({"suppressed_tokens": names, "suppress_unknown": True, "min_length": 5})
    for text, found in zip(TEXTS, translator.translate(TEXTS, options, segmentation="none"), strict=True):
        assert (found.text, found.target_tokens, found.hit_max_length) == ("", 0, True), text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (DecodeOptions(suppressed_tokens=("no such piece",)), "'no such piece' is not in the vocabulary"),
        (DecodeOptions(suppressed_tokens=("</s>",)), "ends every translation: use min_length"),
        (DecodeOptions(suppressed_phrases=(" ",)), "phrase is blank"),
        (DecodeOptions(min_length=200), "min_length of 200 tokens: at most 95 fit here"),
    ],
)
def test_options_that_the_model_cannot_follow(translator: Translator, options: DecodeOptions, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        translator.translate(TEXTS, options, segmentation="none")


def test_scores_of_an_n_best_list_descend_and_token_scores_add_up(translator: Translator) -> None:
    for found in translator.translate(TEXTS, options_of({"length_penalty": 0.8}), segmentation="none"):
        best = found.hypotheses
        assert [h.score for h in best] == sorted((h.score for h in best), reverse=True)
        for h in best:
            assert h.score == pytest.approx(np.sum([t.score for t in h.tokens]) / len(h.tokens) ** 0.8, abs=1e-4)

"""Alignment and coverage penalty read the attention of named heads, as the PyTorch model computes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.serving.reference import LIMIT, TEXTS, Pieces, Reference, assert_same, source_ids

from hmc.artifact import InvalidRequestError, read_manifest
from hmc.serving import DecodeOptions, Sampling, Translator


def open_heads(reference: Reference) -> list[tuple[int, int]]:
    return [(layer, index) for layer, row in enumerate(reference.layout.cross) for index in row]


def last_layer(reference: Reference) -> list[tuple[int, int]]:
    return [head for head in open_heads(reference) if head[0] == open_heads(reference)[-1][0]]


def names(heads: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    return tuple(f"cross.{layer}.{index}" for layer, index in heads)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("chosen", ["default", "first", "two"])
def test_alignment_is_the_mean_attention_of_the_heads(
    translator: Translator, reference: Reference, pieces: Pieces, beam: int, chosen: str
) -> None:
    every = open_heads(reference)
    heads = {"default": last_layer(reference), "first": every[:1], "two": [every[-1], every[0]]}[chosen]
    options = DecodeOptions(
        beam_size=beam,
        n_best=beam,
        max_length=LIMIT,
        alignment=True,
        attention_heads=() if chosen == "default" else names(heads),
    )
    for text, found in zip(TEXTS, translator.translate(TEXTS, options, segmentation="none"), strict=True):
        source = source_ids(pieces, text)
        assert [pieces.piece_to_id(p) for p in found.source_pieces] == list(source)
        for h in found.hypotheses:
            ids = tuple(pieces.piece_to_id(t.piece) for t in h.tokens)
            expected = reference.attention(source, ids, heads)
            np.testing.assert_allclose([t.attention for t in h.tokens], expected, rtol=0, atol=1e-5)
            assert h.alignment == tuple((int(row.argmax()), n) for n, row in enumerate(expected))
            assert all(t.score is None for t in h.tokens)


def test_alignment_does_not_depend_on_the_rest_of_the_batch(translator: Translator) -> None:
    options = DecodeOptions(beam_size=3, max_length=LIMIT, alignment=True, token_scores=True)
    together = translator.translate([*TEXTS, *TEXTS], options, segmentation="none")
    for text, found in zip([*TEXTS, *TEXTS], together, strict=True):
        alone = translator.translate([text], options, segmentation="none")[0]
        assert found.text == alone.text
        attention, expected = ([t.attention for t in x.tokens] for x in (found, alone))
        np.testing.assert_allclose(attention, expected, rtol=0, atol=1e-5)


def test_a_given_translation_is_aligned(translator: Translator, reference: Reference, pieces: Pieces) -> None:
    found = translator.score(TEXTS, TEXTS[::-1], DecodeOptions(alignment=True))
    for text, known, scored in zip(TEXTS, TEXTS[::-1], found, strict=True):
        ids = (*pieces.encode(known), 0)
        expected = reference.attention(source_ids(pieces, text), ids, last_layer(reference))
        np.testing.assert_allclose([t.attention for t in scored.tokens], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("beta", [0.2, 3.0])
def test_coverage_penalty_equals_the_reference(
    translator: Translator, reference: Reference, pieces: Pieces, beta: float
) -> None:
    changed = 0
    for text in TEXTS:
        options = DecodeOptions(
            beam_size=4, n_best=4, max_length=LIMIT, token_scores=True, coverage_penalty=beta, length_penalty=0.6
        )
        found = translator.translate([text], options, segmentation="none")[0]
        expected = reference.beam_search(source_ids(pieces, text), options, limit=LIMIT, heads=last_layer(reference))
        assert_same(found, expected, pieces, 4)
        plain = translator.translate(
            [text], DecodeOptions(beam_size=4, max_length=LIMIT, length_penalty=0.6), segmentation="none"
        )[0]
        changed += plain.text != found.text
    assert changed > 0 or beta < 1


def test_int8_levels_align_too(lively_bundle: Path) -> None:
    with Translator(lively_bundle, "full-int8", device="cpu", threads=1) as translator:
        for found in translator.translate(TEXTS, DecodeOptions(alignment=True, max_length=LIMIT), segmentation="none"):
            sums = np.sum([t.attention for t in found.tokens], axis=1)
            np.testing.assert_allclose(sums, 1.0, atol=1e-5)
            assert len(found.tokens[0].attention) == len(found.source_pieces) == found.source_tokens


def test_heads_that_are_closed_or_do_not_exist(translator: Translator, reference: Reference) -> None:
    known = names(open_heads(reference))
    closed = [f"cross.{n}.{i}" for n in range(2) for i in range(4) if f"cross.{n}.{i}" not in known]
    for name in [*closed, "cross.7.0", "decoder_self.0.0", "5"]:
        with pytest.raises(InvalidRequestError, match=f"attention head '{name}': the cross heads open at this level"):
            translator.translate(TEXTS, DecodeOptions(alignment=True, attention_heads=(name,)), segmentation="none")


def test_alignment_refuses_what_it_cannot_do(lively_bundle: Path, translator: Translator) -> None:
    with pytest.raises(InvalidRequestError, match="attention_heads serve alignment and coverage_penalty"):
        translator.translate(["a"], DecodeOptions(attention_heads=("cross.0.0",)), segmentation="none")
    with pytest.raises(InvalidRequestError, match="score the sampled translation with alignment"):
        translator.translate(["a"], DecodeOptions(alignment=True, sampling=Sampling()), segmentation="none")
    manifest = read_manifest(lively_bundle)
    bare = [level.name for level in manifest.levels if not any(level.layout.cross)]
    for name in bare:
        with (
            Translator(lively_bundle, name, device="cpu", threads=1) as without,
            pytest.raises(InvalidRequestError, match="no open cross-attention head, so it cannot align"),
        ):
            without.translate(["a"], DecodeOptions(alignment=True))

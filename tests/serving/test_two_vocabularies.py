"""Levels of a model whose sides have vocabularies of their own, at every precision, with shortlists and without."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.artifact.marian.opus import GERMAN
from tests.artifact.marian.two_vocabularies import two_vocabularies
from tests.serving.reference import LIMIT, Reference
from tests.tiny import SENTENCES

from hmc.artifact import Precision, load_checkpoint, read_manifest, save_checkpoint
from hmc.artifact.bundle.shortlist import Lexicon
from hmc.artifact.marian.reader import import_marian
from hmc.artifact.tokenizer.tokenizer import Tokenizer, open_tokenizer
from hmc.compiler import BundleBuilder, LevelRequest, ShortlistText
from hmc.serving import DecodeOptions, Translator

PRECISIONS: tuple[Precision, ...] = ("fp32", "int8", "int4")
TEXTS = SENTENCES[:8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model `c`, and a bundle `b` of it: every precision, with shortlists and without."""
    folder = tmp_path_factory.mktemp("two")
    two_vocabularies(folder / "opus", seed=6)
    checkpoint = import_marian(folder / "opus")
    save_checkpoint(checkpoint, folder / "c")
    text = ShortlistText(SENTENCES[:8], GERMAN, frequent=20, best=8)
    request = LevelRequest(folder / "c")
    with BundleBuilder.open(folder / "b", [folder / "c"], calibration=SENTENCES, shortlist=text) as builder:
        builder.finish(
            [builder.add(request, p, with_shortlist=shortlist) for p in PRECISIONS for shortlist in (False, True)]
        )
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return open_tokenizer(load_checkpoint(folder / "c").tokenizer)


@pytest.mark.parametrize("level", ["full", "full-shortlist"])
@pytest.mark.parametrize("beam", [1, 4])
def test_translations_are_those_of_a_plain_search(folder: Path, tokenizer: Tokenizer, level: str, beam: int) -> None:
    checkpoint, found = load_checkpoint(folder / "c"), read_manifest(folder / "b").level(level)
    lexicon = Lexicon.load(folder / "b" / found.shortlist, checkpoint.architecture) if found.shortlist else None
    # A random model repeats itself unless it may not.
    reference, options = (
        Reference(checkpoint, found.layout, lexicon),
        DecodeOptions(beam_size=beam, max_length=LIMIT, no_repeat_ngram_size=1),
    )
    written = set()
    with Translator(folder / "b", level, device="cpu", threads=1) as translator:
        for text in TEXTS:
            source = (*tokenizer.encode(text), checkpoint.architecture.eos_id)
            best = reference.beam_search(source, options, limit=LIMIT)[0]
            [ours] = translator.translate([text], options, segmentation="none")
            assert ours.text == tokenizer.decode(best.ids)
            assert ours.score == pytest.approx(best.score, abs=2e-4)
            written |= set(best.ids)
    assert len(written) > 10, "the model writes so little that the test says nothing"


@pytest.mark.parametrize("level", ["full-int8", "full-int4", "full-int8-shortlist", "full-int4-shortlist"])
def test_a_sentence_does_not_depend_on_its_company(folder: Path, level: str) -> None:
    with Translator(folder / "b", level, device="cpu", threads=1) as translator:
        options = DecodeOptions(no_repeat_ngram_size=1)
        alone = [translator.translate([text], options, segmentation="none")[0] for text in TEXTS]
        together = translator.translate(TEXTS, options, segmentation="none")
        assert [(t.text, t.score) for t in alone] == [(t.text, t.score) for t in together]
        assert len({t.text for t in together}) > 3


def test_alignment_names_the_pieces_of_each_side(folder: Path, tokenizer: Tokenizer) -> None:
    with Translator(folder / "b", "full", device="cpu", threads=1) as translator:
        [found] = translator.translate([TEXTS[0]], DecodeOptions(alignment=True), segmentation="none")
        assert list(found.source_pieces) == [*map(tokenizer.source_piece, tokenizer.encode(TEXTS[0])), "</s>"]
        assert tokenizer.decode([i for t in found.tokens if (i := tokenizer.find(t.piece)) is not None]) == found.text
        [scored] = translator.score([TEXTS[0]], [GERMAN[0]])
        written = tokenizer.encode(GERMAN[0], target=True)
        assert scored.target_tokens == len(written) + 1


def test_a_list_has_what_is_written_alike(folder: Path, tokenizer: Tokenizer) -> None:
    level = read_manifest(folder / "b").level("full-shortlist")
    assert level.shortlist
    arch = load_checkpoint(folder / "c").architecture
    lexicon = Lexicon.load(folder / "b" / level.shortlist, arch)
    assert (lexicon.source_size, lexicon.vocab_size) == (113, 101)
    for source in range(lexicon.source_size):
        same = tokenizer.find(tokenizer.source_piece(source))
        if same is not None and same != arch.pad_id:
            assert same in lexicon.candidates([source])
    assert not set(lexicon.candidates([112]).tolist()) - set(range(101)), "a source token is no target token"

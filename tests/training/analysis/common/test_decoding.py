"""Analyses of models into many languages decode as Transformers does: the target begins with its language."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.artifact.m2m100.m2m100_writer import sources, write_m2m100, write_nllb

from hmc.artifact import save_checkpoint
from hmc.pipelines.importing import import_model
from hmc.training import translate
from hmc.training.analysis.common.decoding import translations
from hmc.training.analysis.common.result import corpus_source
from hmc.training.analysis.common.subject import Subject, Text, load_subject
from hmc.training.analysis.common.views import tokenize
from hmc.training.analysis.roles.conllu import Tree, Word
from hmc.training.analysis.roles.syntactic import syntax
from hmc.training.data.corpus import TokenCorpus
from hmc.training.model.beam_search import length_limit

pytestmark = pytest.mark.filterwarnings("ignore")  # what other libraries warn of is not ours to fix
FRENCH = 3
"""Every third text names French as its target; the others name none."""


@pytest.fixture(scope="module", params=["m2m100", "nllb"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Subject, Any, Any]:
    """The same model as the subject of an analysis, and as Transformers' model and tokenizer."""
    folder = tmp_path_factory.mktemp(request.param)
    model, tokenizer = (write_m2m100 if request.param == "m2m100" else write_nllb)(folder / "model")
    save_checkpoint(import_model(folder / "model"), folder / "checkpoint")
    return load_subject(folder / "checkpoint", "cpu"), model, tokenizer


def expected_ids(models: tuple[Subject, Any, Any], plain: list[str]) -> list[list[int]]:
    """What Transformers generates greedily for each text, without EOS."""
    subject, model, tokenizer = models
    found = []
    for number, text in enumerate(plain):
        batch = tokenizer(text, return_tensors="pt")
        limit = length_limit(subject.model, batch["input_ids"].shape[1])
        forced = tokenizer.convert_tokens_to_ids(names(subject)[number % FRENCH == 0][1])
        with torch.no_grad():
            [row] = model.generate(**batch, max_length=limit + 1, forced_bos_token_id=forced, do_sample=False).tolist()
        found.append(row[1:-1] if row[-1] == subject.vocabulary.eos_id else row[1:])
    return found


def names(subject: Subject) -> tuple[tuple[str, str], tuple[str, str]]:
    """German and French: as texts name them, and as Transformers does."""
    if subject.languages[1] == "de":
        return (">>de<<", "__de__"), (">>fr<<", "__fr__")
    return (">>deu_Latn<<", "deu_Latn"), (">>fra_Latn<<", "fra_Latn")


def named(subject: Subject, plain: list[str]) -> list[str]:
    """The texts as HMC reads them."""
    return [f"{names(subject)[1][0]} {text}" if n % FRENCH == 0 else text for n, text in enumerate(plain)]


@pytest.mark.parametrize("beam", [1, 4])
def test_translations_under_masks_are_those_of_transformers(models: tuple[Subject, Any, Any], beam: int) -> None:
    subject, plain = models[0], sources(24)
    texts, masks = named(subject, plain), np.ones((2, subject.layout.total), bool)
    masks[1, ::2] = False
    found = translations(subject.model, subject.vocabulary, texts, masks, beam=beam)
    if beam == 1:
        expected = [subject.vocabulary.decode(ids) for ids in expected_ids(models, plain)]
    else:  # `translate` is compared with Transformers elsewhere; these long beams have near ties
        expected = translate(subject.model, subject.vocabulary, texts, beam=beam)
    assert found[0] == expected
    assert found[1] != expected
    assert len(set(expected)) > 12


@pytest.mark.parametrize("forced", [False, True])
def test_what_the_decoder_reads_begins_with_the_language(models: tuple[Subject, Any, Any], forced: bool) -> None:
    subject, plain = models[0], sources(12)
    pairs = tuple(zip(named(subject, plain), plain, strict=True))
    prepared = tokenize(subject, Text(pairs, corpus_source("texts", pairs)), forced=forced)
    expected = expected_ids(models, plain)
    if forced:
        expected = [[ids[0], *models[2](text)["input_ids"][1:-1]] for ids, text in zip(expected, plain, strict=True)]
    assert {pair.languages for pair in prepared.pairs} == {(1, 1)}
    assert [pair.target for pair in prepared.pairs] == [[*ids, subject.vocabulary.eos_id] for ids in expected]


def test_trees_and_pairs_leave_the_language_token_out(models: tuple[Subject, Any, Any], tmp_path: Path) -> None:
    """A word has its own tokens although that of the language is before them; a blank side is blank beside it."""
    subject, _, _ = models
    text = "A dog runs"
    words = (Word("A", 1, "det", 0, 1), Word("dog", 2, "nsubj", 2, 5), Word("runs", -1, "root", 6, 10))
    opening = subject.vocabulary.source_opening(subject.vocabulary.encode(text))
    assert len(opening) == 1
    assert syntax(subject, [Tree(text, words)], opening).sentences == 1
    (tmp_path / "t.tsv").write_text(f"{text}\tEin Hund\nA cat\t\n\tEine Katze\n")
    corpus = TokenCorpus.build([str(tmp_path / "t.tsv")], subject.vocabulary, 64, tmp_path / "cache", ("en", "de"))
    assert len(corpus.source_lengths) == 1

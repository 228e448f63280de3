"""Languages of bundles, and the target tokens of multilingual models."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.serving.fakes import write_bundle

from hmc.artifact import InvalidRequestError, read_manifest
from hmc.serving.text.languages import Languages, with_code

CODES = (">>cmn_Hans<<", ">>deu<<", ">>pt_BR<<", ">>sr_Cyrl<<")
MANY = Languages("en", ("cmn-Hans", "de", "pt-BR", "sr-Cyrl"), CODES)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ("de", ">>deu<<"),
        ("deu", ">>deu<<"),
        ("ger", ">>deu<<"),
        ("DE", ">>deu<<"),
        ("de-AT", ">>deu<<"),
        ("de_CH", ">>deu<<"),
        ("pt-br", ">>pt_BR<<"),
        ("cmn-Hans", ">>cmn_Hans<<"),
        ("zh-Hans", ">>cmn_Hans<<"),
        ("zh-Hans-CN", ">>cmn_Hans<<"),
        ("sr-Cyrl", ">>sr_Cyrl<<"),
    ],
)
def test_a_tag_finds_the_token(asked: str, code: str) -> None:
    assert MANY.writes(asked)
    assert MANY.code(asked) == code


@pytest.mark.parametrize("asked", ["fr", "pt", "zh", "sr-Latn", "nds"])
def test_no_other_language_takes_the_place_of_one_that_is_not_there(asked: str) -> None:
    assert not MANY.writes(asked)
    with pytest.raises(InvalidRequestError, match="this model has cmn-Hans, de, pt-BR, sr-Cyrl"):
        MANY.code(asked)


@pytest.mark.parametrize("asked", ["", "d", "german language", ">>deu<<", "de-", "überlang"])
def test_what_is_no_tag_is_refused(asked: str) -> None:
    with pytest.raises(InvalidRequestError, match="write a BCP 47 tag such as de"):
        MANY.writes(asked)


def test_a_model_of_one_language_has_no_token(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "b", languages=("eng", "gmw"))
    languages = Languages.read(bundle, read_manifest(bundle))
    assert (languages.source, languages.targets, languages.codes) == ("en", ("gmw",), ())
    assert languages.reads("en-GB")
    assert not languages.reads("de")
    assert languages.writes("gmw")
    assert languages.code("gmw") == languages.code(None) == ""


def test_a_model_of_many_sources_reads_all() -> None:
    assert Languages("mul", ("en",)).reads("tlh")
    assert not Languages("de", ("en",)).reads("tlh")


def test_texts_get_the_token_once() -> None:
    assert with_code("A dog.", ">>deu<<") == ">>deu<< A dog."
    assert with_code(">>deu<< A dog.", ">>deu<<") == ">>deu<< A dog."
    assert with_code("  ", ">>deu<<") == "  "
    assert with_code(">>fra<< A dog.", "") == ">>fra<< A dog."
    with pytest.raises(InvalidRequestError, match="begins with >>fra<<, but target_language chooses >>deu<<"):
        with_code(">>fra<< A dog.", ">>deu<<")

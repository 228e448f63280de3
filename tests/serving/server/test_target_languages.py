"""A real multilingual model, whose source texts begin with the token of a target language."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tiny import SENTENCES

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import LevelNotFoundError
from hmc.serving import DecodeOptions, Translator
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

OPTIONS = DecodeOptions(max_length=8, alignment=True)
TEXT = SENTENCES[0]


@pytest.fixture(scope="module")
def client(multilingual_bundle: Path) -> Iterator[Client]:
    settings = ServerSettings(port=0, device="cpu", threads=1)
    with BackgroundServer(multilingual_bundle, settings) as server, Client(server.address) as connected:
        yield connected


def pieces(client: Client, text: str, target: str | None = None) -> tuple[str, ...]:
    return client.translate([text], options=OPTIONS, target_language=target)[0].source_pieces


def test_target_languages_are_listed(client: Client) -> None:
    (model,) = client.models()
    assert (model.name, model.source_language, model.target_languages) == ("eng-gmw", "en", ("de", "nl"))


@pytest.mark.parametrize(("target", "code"), [("de", ">>deu<<"), ("deu", ">>deu<<"), ("nl-BE", ">>nld<<")])
def test_each_text_begins_with_its_token(client: Client, target: str, code: str) -> None:
    plain = pieces(client, TEXT)
    assert plain[0] != code
    assert pieces(client, TEXT, target) == (code, *plain)
    assert pieces(client, f"{code} {TEXT}", target) == pieces(client, f"{code} {TEXT}") == (code, *plain)
    streamed = client.translate_stream([TEXT, "", TEXT], options=OPTIONS, target_language=target)
    found = [answer.result().source_pieces for answer in streamed]
    assert found == [(code, *plain), (), (code, *plain)]
    (*_, last) = client.translate_tokens(TEXT, options=OPTIONS, target_language=target)
    assert last.translation is not None
    assert last.translation.source_pieces == (code, *plain)


def test_scores_are_those_of_the_target_language(client: Client) -> None:
    translated = client.translate([TEXT], options=DecodeOptions(max_length=20), target_language="de")
    scored = client.score([TEXT], [translated[0].text], target_language="de")[0]
    assert scored.source_tokens == translated[0].source_tokens
    assert scored.source_tokens == client.score([TEXT], [translated[0].text])[0].source_tokens + 1


def test_a_language_that_is_not_there_is_refused_with_those_that_are(client: Client) -> None:
    with pytest.raises(LevelNotFoundError, match=r"to fr; this server has eng-gmw: en → de, nl"):
        pieces(client, TEXT, "fr")
    with pytest.raises(InvalidRequestError, match=r"texts\[0\]: .* begins with >>nld<<, but target_language chooses"):
        pieces(client, f">>nld<< {TEXT}", "de")
    with pytest.raises(InvalidRequestError, match="unknown target language >>fra<<; this model has: >>deu<<, >>nld<<"):
        pieces(client, f">>fra<< {TEXT}")


def test_texts_are_divided_by_the_rules_of_a_language_with_another_code(multilingual_bundle: Path) -> None:
    """The manifest names the source as the model's files do, with three letters."""
    with Translator(multilingual_bundle, threads=1) as translator:
        assert (translator.manifest.source_language, translator.source.language) == ("eng", "en")

"""A text of several paragraphs and sentences means the same at every door: nothing of it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.cli.conftest import Hmc
from tests.command import done, run_hmc
from tests.serving.http.conftest import url_of
from typer.testing import Result

from hmc.serving import DecodeOptions, Translator
from hmc.serving.client import AsyncClient, Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

PARAGRAPHS = (
    "A man rides a bicycle.\n\nTwo dogs run. A woman reads a book.\n\n- A boy jumps.",
    "A man rides a bicycle. Two dogs run.",
)


@pytest.fixture
def hmc() -> Hmc:
    """As in the tests of the command."""

    def run(*arguments: str | Path, stdin: bytes | None = None) -> Result:
        return run_hmc(arguments, stdin=stdin, env={"COLUMNS": "200"})

    return run


@pytest.fixture(scope="module")
def translator(lively_bundle: Path) -> Iterator[Translator]:
    with Translator(lively_bundle, "full", device="cpu", threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def server(lively_bundle: Path) -> Iterator[BackgroundServer]:
    settings = ServerSettings(port=0, http_port=0, device="cpu", threads=1, levels=("full",))
    with BackgroundServer(lively_bundle, settings) as running:
        yield running


def sentence(translator: Translator, text: str) -> str:
    return translator.translate([text], segmentation="none")[0].text


@pytest.mark.parametrize("text", PARAGRAPHS)
def test_every_door_translates_every_sentence(
    text: str, translator: Translator, server: BackgroundServer, lively_bundle: Path, hmc: Hmc
) -> None:
    one = ("A man rides a bicycle.", "Two dogs run.", "A woman reads a book.", "A boy jumps.")
    expected = text
    for each in one:
        expected = expected.replace(each, sentence(translator, each))
    made = {"Translator": translator.translate([text])[0].text}
    with Client(server.address) as client:
        made["Client"] = client.translate([text])[0].text
        made["TranslateDocument"] = "".join(piece.text for piece in client.translate_document(text))

    async def ask() -> str:
        async with AsyncClient(server.address) as client:
            return (await client.translate([text]))[0].text

    made["AsyncClient"] = asyncio.run(ask())
    for where in (("--bundle", lively_bundle), ("--server", server.address)):
        ran = done(hmc("translate", *where, "--level", "full", text))
        made[f"hmc translate {where[0]}"] = ran.stdout.removesuffix("\n")
        ran = hmc("translate", *where, "--level", "full", "--document", stdin=text.encode())
        made[f"hmc translate {where[0]} --document"] = ran.stdout
    url = url_of(server)
    found = httpx.post(f"{url}/v1/translate", json={"texts": [text]}, timeout=600).json()
    made["HTTP"] = found["translations"][0]["text"]
    asked = {"q": text, "source": "en", "target": "de"}
    made["LibreTranslate"] = httpx.post(f"{url}/translate", json=asked, timeout=600).json()["translatedText"]
    assert made == dict.fromkeys(made, expected)


def test_a_text_is_one_sentence_on_request(translator: Translator, server: BackgroundServer) -> None:
    text = PARAGRAPHS[1]
    whole = translator.submit(text, DecodeOptions()).result().text
    assert translator.translate([text], segmentation="none")[0].text == whole
    assert translator.translate([text])[0].text != whole
    with Client(server.address) as client:
        assert client.translate([text], segmentation="none")[0].text == whole


def test_a_translation_that_was_stopped_says_so(
    translator: Translator, server: BackgroundServer, lively_bundle: Path, hmc: Hmc
) -> None:
    text, options = PARAGRAPHS[0], DecodeOptions(max_length=1)
    assert translator.translate([text], options)[0].hit_max_length
    with Client(server.address) as client:
        assert client.translate([text], options=options)[0].hit_max_length
    for where in (("--bundle", lively_bundle), ("--server", server.address)):
        arguments = ("translate", *where, "--level", "full", "--max-length", "1")
        said = "the translation reached its greatest length and may be incomplete"
        assert said in hmc(*arguments, text).stderr
        assert hmc(*arguments, "--document", stdin=text.encode()).stderr.count(said) == 4

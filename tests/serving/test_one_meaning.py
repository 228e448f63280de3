"""A text of several paragraphs and sentences means the same at every door: nothing of it is lost."""

from __future__ import annotations

import asyncio
import json
import os
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
from hmc.serving.text.segmentation.pieces import pieces

FILES = {
    "items": "plums\nflour\noil\nsugar\n",
    "captions": "Two women carry a long ladder over the wet road to the house\nA cat sleeps on a chair\n",
    "messages": "The name could not be read from the list of persons\n"
    "The page cannot be shown because it is far too long\nThe date must lie within the last eleven days\n",
    "beside a sentence": "A boy jumps. 🐶\n• Two dogs run.\nA boy jumps. +49 40 7654321\n1. Two dogs run. –\n"
    "A boy jumps ❤️\nTwo dogs run. 🐶 A boy jumps.\n",
    "without a letter": "🐶\n+49 40 7654321\n?!\n§ 7\n•\n26 × ?\n☎ +49 40 7654321\n\n",
    "addresses": "Write to anna.braun@example.org or see www.example.com/a-b_c today.\nhttps://example.org/a_(b)\n",
    "subtitles": "WEBVTT - A day\nKind: captions\n\nSTYLE\n::cue { color: blue; }\n\nNOTE made by hand\n\nfirst\n"
    "00:01.000 --> 00:04.000 align:start\n<v Anna Braun>Two dogs run.\n\n00:05.000 --> 00:06.000\nA boy jumps.\n",
}
"""Texts in which something was lost or made up at some doors."""
CASES = Path(os.environ.get("HMC_DATA", "data")).parent / "cases"
CASE_FILES = (
    "addresses.txt", "emoji-tail.txt", "lines-captions.txt", "lines-lower.txt", "lines-ui.txt", "no-letters.txt",
    "style.vtt",
)  # fmt: skip
NDJSON = {"Content-Type": "application/x-ndjson"}
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


def whole_text_doors(text: str, server: BackgroundServer, bundle: Path, hmc: Hmc) -> dict[str, str]:
    """Door → the translation of the text, given at once."""
    made = {}
    with Client(server.address) as client:
        made["Translate"] = client.translate([text])[0].text
        made["TranslateDocument"] = "".join(piece.text for piece in client.translate_document(text))
        made["TranslateStream"] = next(iter(client.translate_stream([text]))).result().text
        *_, last = client.translate_tokens(text)
        assert last.translation is not None
        made["TranslateTokens"] = last.translation.text
    url = url_of(server)
    found = httpx.post(f"{url}/v1/translate", json={"texts": [text]}, timeout=600).json()
    made["HTTP"] = found["translations"][0]["text"]
    found = httpx.post(f"{url}/v1/stream", content=json.dumps({"text": text}), timeout=600, headers=NDJSON)
    made["HTTP stream"] = json.loads(found.text)["translation"]["text"]
    asked = {"q": text, "source": "en", "target": "de"}
    made["LibreTranslate"] = httpx.post(f"{url}/translate", json=asked, timeout=600).json()["translatedText"]
    for where in (("--bundle", bundle), ("--server", server.address)):
        arguments = ("translate", *where, "--level", "full")
        made[f"{where[0]} argument"] = done(hmc(*arguments, text)).stdout
        made[f"{where[0]} --document"] = done(hmc(*arguments, "--document", stdin=text.encode())).stdout
    return made


def line_doors(file: Path, server: BackgroundServer, bundle: Path, hmc: Hmc, out: Path) -> dict[str, list[str]]:
    """Door → the translation of each line of the file."""
    made = {}
    for where in (("--bundle", bundle), ("--server", server.address)):
        arguments = ("translate", *where, "--level", "full", "--source", file)
        made[f"{where[0]} --source"] = done(hmc(*arguments)).stdout.split("\n")[:-1]
        made[f"{where[0]} --incremental"] = done(hmc(*arguments, "--incremental")).stdout.split("\n")[:-1]
    done(hmc("translate", "--bundle", bundle, "--level", "full", "--source", file, "--engine", "local", "-o", out))
    made["bulk"] = (out / "translations/000000.txt").read_text(encoding="utf-8").split("\n")[:-1]
    with Client(server.address) as client:
        answers = client.translate_stream(file.read_text(encoding="utf-8").split("\n")[:-1])
        made["TranslateStream of lines"] = [answer.result().text for answer in answers]
    return made


@pytest.mark.parametrize("name", [*FILES, *CASE_FILES])
def test_every_file_means_the_same_at_every_door(
    name: str, translator: Translator, server: BackgroundServer, lively_bundle: Path, hmc: Hmc, tmp_path: Path
) -> None:
    """A sentence has the translation that it has alone, and all else of the text is there unchanged."""
    if name in FILES:
        text = FILES[name]
    elif (CASES / name).exists():
        text = (CASES / name).read_text(encoding="utf-8")
    else:
        pytest.skip(f"{CASES / name} is not there: files of known faults lie beside HMC_DATA, if at all")
    expected, at = "", 0
    for piece in pieces(text, "en", lambda _: True):
        expected += piece.source if piece.text is None else sentence(translator, piece.text)
        at += piece.text is not None
    assert (at == 0) == (name in ("without a letter", "no-letters.txt"))
    made = whole_text_doors(text, server, lively_bundle, hmc)
    assert made == dict.fromkeys(made, expected)
    file = tmp_path / "file.txt"
    file.write_text(text, encoding="utf-8")
    lines = text.split("\n")[:-1]
    alone = [translator.translate([line])[0].text for line in lines]
    if name not in ("subtitles", "style.vtt"):  # whose lines do not say what they are
        assert alone == expected.split("\n")[:-1]
    by_line = line_doors(file, server, lively_bundle, hmc, tmp_path / "out")
    assert by_line == dict.fromkeys(by_line, alone)
    with Client(server.address) as client:
        scored = client.score(lines, alone)
    for line, made_of, given in zip(lines, alone, scored, strict=True):
        if line.strip() and not any(map(str.isalpha, line)):
            assert (given.text, given.score) == (made_of, 0.0)


def test_a_text_in_another_script_is_marked_at_every_door(
    server: BackgroundServer, lively_bundle: Path, hmc: Hmc, tmp_path: Path
) -> None:
    text, url = "Привет, мир.", url_of(server)
    with Client(server.address) as client:
        assert client.translate([text])[0].mostly_unknown
        assert next(iter(client.translate_stream([text]))).result().mostly_unknown
        assert all(piece.segment and piece.segment.mostly_unknown for piece in client.translate_document(text))
    found = httpx.post(f"{url}/v1/translate", json={"texts": [text]}, timeout=600).json()
    assert found["translations"][0]["mostlyUnknown"] is True
    asked = {"q": [text, "A boy jumps."], "source": "en", "target": "de"}
    assert httpx.post(f"{url}/translate", json=asked, timeout=600).json()["mostlyUnknown"] == [True, False]
    (tmp_path / "a.txt").write_text(f"A boy jumps.\n{text}\n", encoding="utf-8")
    arguments = ("translate", "--bundle", lively_bundle, "--level", "full")
    said = "line 2: the vocabulary does not know most of its words, so the translation is made up"
    assert said in " ".join(hmc(*arguments, "--source", tmp_path / "a.txt").stderr.split())
    records = [
        json.loads(line) for line in hmc(*arguments, "--source", tmp_path / "a.txt", "--json").stdout.splitlines()
    ]
    assert [record["mostly_unknown"] for record in records] == [False, True]


def test_lines_that_were_joined_are_counted_at_every_door(server: BackgroundServer) -> None:
    text = "Two men in blue shirts stand on the roof of the old white\nhouse and look at the road."
    url = url_of(server)
    with Client(server.address) as client:
        assert client.translate([text])[0].joined_lines == 1
        assert next(iter(client.translate_stream([text]))).result().joined_lines == 1
        assert [piece.segment and piece.segment.joined_lines for piece in client.translate_document(text)] == [1]
    found = httpx.post(f"{url}/v1/translate", json={"texts": [text]}, timeout=600).json()
    assert found["translations"][0]["joinedLines"] == 1


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

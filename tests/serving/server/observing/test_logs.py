"""What the log says about calls, in both formats, and that it holds no texts unless asked."""

from __future__ import annotations

import io
import json
import logging
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from tests.serving.fakes import FakeFactory, eventually, failure

from hmc.artifact import HmcError
from hmc.serving import DecodeOptions
from hmc.serving.client import Client
from hmc.serving.server.access.tokens import line_of
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.handlers import Handlers
from hmc.serving.server.observing.logs import JsonLines, TextLines, describe
from hmc.serving.server.settings import ServerSettings
from hmc.serving.text.segmentation import sentences
from hmc.v1 import translation_pb2 as pb
from hmc.v1 import translation_pb2_grpc as rpc

SECRET = "geheimnis"


@pytest.fixture
def written() -> Iterator[tuple[logging.StreamHandler[io.StringIO], io.StringIO]]:
    """A handler of the root logger, and what it writes."""
    stream = io.StringIO()
    handler, root = logging.StreamHandler(stream), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield handler, stream
    root.removeHandler(handler)
    root.setLevel(level)


def calls_of(
    bundle: Path, factory: FakeFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, calls: bool, texts: bool
) -> None:
    """An answered call, a refused one, a stream, and one that ends with a bug whose message quotes its text."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(line_of("news", "t", ["translate"], {}))
    settings = ServerSettings(port=0, tokens=tokens, log_calls=calls, log_texts=texts)
    with BackgroundServer(bundle, settings, factory) as running, grpc.insecure_channel(running.address) as channel:
        stub: Any = rpc.TranslationServiceStub(channel)
        known = (("authorization", "Bearer t"), ("x-request-id", "id-1"))
        stub.Translate(pb.TranslateRequest(texts=[SECRET]), metadata=known)
        failure(lambda: stub.Translate(pb.TranslateRequest(texts=[SECRET])))
        with Client(running.address, token="t") as client:
            list(client.translate_stream([SECRET]))
        original = Handlers.check_count
        monkeypatch.setattr(Handlers, "check_count", lambda *_: int(f"a bug with {SECRET}"))
        code, message = failure(lambda: stub.Translate(pb.TranslateRequest(texts=[SECRET]), metadata=known))
        assert (code, SECRET in message) == ("INTERNAL", False)
        monkeypatch.setattr(Handlers, "check_count", original)


@pytest.mark.parametrize("texts", [False, True])
def test_json(
    bundle: Path, factory: FakeFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: Any, texts: bool
) -> None:
    handler, stream = written
    handler.setFormatter(JsonLines(texts=texts))
    calls_of(bundle, factory, tmp_path, monkeypatch, calls=True, texts=texts)
    eventually(lambda: stream.getvalue().count('"milliseconds"') == 4)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    ended = [line for line in lines if "milliseconds" in line]
    method = "/hmc.v1.TranslationService/Translate"
    assert [(x["rpc"], x["status"], x["caller"]) for x in ended] == [
        (method, "OK", "news"),
        (method, "UNAUTHENTICATED", ""),
        (f"{method}Stream", "OK", "news"),
        (method, "INTERNAL", "news"),
    ]
    assert ended[0]["request_id"] == "id-1"
    assert re.fullmatch("[0-9a-f]{32}", ended[1]["request_id"])
    for line in lines:
        assert {"time", "level", "message"} <= set(line)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line["time"])
    (bug,) = (line for line in lines if line["level"] == "ERROR")
    assert (bug["request_id"], bug["caller"]) == ("id-1", "news")
    assert "ValueError: " in bug["error"]
    assert "in Translate" in bug["error"]
    assert (SECRET in stream.getvalue()) == texts
    assert [line["texts"] for line in lines if "texts" in line] == [[SECRET]] * (3 if texts else 0)


def test_text(
    bundle: Path, factory: FakeFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: Any
) -> None:
    handler, stream = written
    handler.setFormatter(TextLines())
    calls_of(bundle, factory, tmp_path, monkeypatch, calls=True, texts=False)
    pattern = r"INFO /hmc\.v1\.TranslationService/Translate OK milliseconds=[\d.]+ request_id=id-1 caller=news\n"
    eventually(lambda: re.search(pattern, stream.getvalue()) is not None)
    assert "ValueError: (message withheld: it may quote a text" in stream.getvalue()
    assert SECRET not in stream.getvalue()


def test_a_callers_name_stays_on_its_line() -> None:
    record = logging.LogRecord("hmc", logging.INFO, "", 0, "a call", (), None)
    record.fields = {"caller": "alice\nERROR forged"}
    assert TextLines().format(record).endswith(r" INFO a call caller='alice\nERROR forged'")


def test_calls_are_not_logged_unless_asked(
    bundle: Path, factory: FakeFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: Any
) -> None:
    handler, stream = written
    handler.setFormatter(JsonLines())
    calls_of(bundle, factory, tmp_path, monkeypatch, calls=False, texts=False)
    assert {json.loads(line)["level"] for line in stream.getvalue().splitlines() if "rpc" in line} == {"ERROR"}


def test_errors_that_led_to_others_are_shown_and_safe_messages_kept() -> None:
    try:
        try:
            raise FileNotFoundError(2, "No such file", "weights.bin")
        except OSError as error:
            raise KeyError(SECRET) from error
    except KeyError as error:
        caught = (type(error), error, error.__traceback__)
    said = describe(caught, texts=False)
    assert said.index("weights.bin") < said.index("which led to") < said.index("KeyError: (message withheld")
    assert SECRET not in said
    assert SECRET in describe(caught, texts=True)


def test_streams_over_http_are_logged_as_other_calls(
    bundle: Path, factory: FakeFactory, tmp_path: Path, written: Any
) -> None:
    """With caller, name and time, although the rest of the answer is written after its first message."""
    handler, stream = written
    handler.setFormatter(JsonLines())
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(line_of("news", "t", ["translate"], {}))
    settings = ServerSettings(port=0, http_port=0, tokens=tokens, log_calls=True)
    with BackgroundServer(bundle, settings, factory) as running:
        assert running.server is not None
        headers = {"Authorization": "Bearer t", "X-Request-Id": "id-1", "Accept": "text/event-stream"}
        url = str(running.server.http_address)
        assert httpx.post(f"{url}/v1/document", json={"text": "a\nb"}, headers=headers).status_code == 200
        lines = b'{"id": "1", "text": "a"}\n{"id": "2", "text": "b"}\n'
        headers |= {"Content-Type": "application/x-ndjson"}
        assert httpx.post(f"{url}/v1/stream", content=lines, headers=headers).status_code == 200
    ended = [line for line in map(json.loads, stream.getvalue().splitlines()) if line.get("status") == "OK"]
    assert [line["caller"] for line in ended] == ["news", "news"]
    assert [line["request_id"] for line in ended] == ["id-1", "id-1"]
    assert all(line["milliseconds"] > 0 for line in ended)


def test_no_log_at_any_level_holds_a_text(lively_bundle: Path, written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real translations and errors by gRPC and HTTP, with every logger of the process at DEBUG."""
    handler, stream = written
    handler.setFormatter(JsonLines())
    logging.getLogger().setLevel(logging.DEBUG)
    text = f"A {SECRET} dog.\nTwo {SECRET} men."
    settings = ServerSettings(port=0, http_port=0, levels=("h5",), default_level="h5", device="cpu", log_calls=True)
    options = DecodeOptions(beam_size=1, max_length=4)
    with BackgroundServer(lively_bundle, settings) as running, Client(running.address) as client:
        client.translate([text], options=options)
        list(client.translate_stream([text, SECRET], options=options))
        list(client.translate_tokens(SECRET, options=options))
        list(client.translate_document(text, options=options, keep=[SECRET]))
        client.score([SECRET], [SECRET])
        refused: list[Callable[[], object]] = [
            lambda: client.translate([SECRET], SECRET),
            lambda: client.translate([SECRET], options=DecodeOptions(suppressed_tokens=(SECRET,))),
            lambda: list(client.translate_document(text, keep=[f"({SECRET}"])),
            lambda: client.translate([SECRET], target_prefixes=[SECRET * 8_000]),
        ]
        answered = 0
        for call in refused:
            with suppress(HmcError):
                call()
                answered += 1
        assert answered < len(refused)
        monkeypatch.setattr(sentences, "_divide", lambda given, _: sentences._whole(given, ValueError(f"at {given}")))
        client.translate([text], options=options)
        for path, kind, body in (
            ("/v1/translate", "application/json", json.dumps({"texts": [text]})),
            ("/v1/translate", "application/json", f'{{"texts": ["{SECRET}"'),
            ("/v1/translate", "application/json", json.dumps({"texts": [SECRET], SECRET: SECRET})),
            ("/translate", "application/json", json.dumps({"q": text, "source": "en", "target": "de"})),
            ("/translate", "application/x-www-form-urlencoded", f"q={SECRET}&source=en&target=de"),
            ("/translate", "application/x-www-form-urlencoded", f"q={SECRET}&source={SECRET}&target=de"),
            ("/translate", "multipart/form-data; boundary=b", FORM.replace("\n", "\r\n")),
            ("/translate", "multipart/form-data; boundary=b", f"{SECRET} {FORM}"),
        ):
            assert running.server is not None
            url = str(running.server.http_address)
            asked = urllib.request.Request(url + path, body.encode(), {"Content-Type": kind})
            with suppress(urllib.error.HTTPError):
                urllib.request.urlopen(asked, timeout=60).read()
        eventually(lambda: stream.getvalue().count('"milliseconds"') >= 12)
    assert '"level": "DEBUG"' in stream.getvalue()
    assert "could not divide a text of" in stream.getvalue()
    assert [line for line in stream.getvalue().splitlines() if SECRET in line] == []


FORM = f"""--b
Content-Disposition: form-data; name="q"

{SECRET}
--b
Content-Disposition: form-data; name="source"

en
--b
Content-Disposition: form-data; name="target"

de
--b--
"""

"""What a stranger can make the HTTP listener do: nothing of a body is read before its call is admitted, and connections
have limits of number and time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from starlette.requests import Request
from tests.serving.fakes import FakeFactory
from tests.serving.http.conftest import serving

from hmc.artifact import InvalidRequestError
from hmc.serving.http import bodies, libretranslate, listener
from hmc.serving.http.exchange import BodyLine, Lines
from hmc.serving.server.access.tokens import line_of
from hmc.v1 import translation_pb2 as pb

TIMEOUT_S = 60.0
"""After which a test that hangs fails."""
SHORT_S = 0.2
"""A limit of the server that a test waits for."""
JSON = "application/json"
ADMIN = ("reload", "load-level", "unload-level", "set-default-level")
TWINS = [*(f"/v1/{name}" for name in ("translate", "tokens", "document", "score")), *(f"/v1/admin/{n}" for n in ADMIN)]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("limits")
    tokens = folder / "tokens.toml"
    slow = line_of("slow", "of-slow", ["translate"], {"texts_per_second": 0.001, "burst": 1})
    tokens.write_text("\n".join([slow, line_of("metrics", "of-metrics", ["metrics"], {})]))
    with serving(folder, FakeFactory(), tokens=tokens) as (_, url):
        yield url


def connected(url: str) -> HTTPConnection:
    return HTTPConnection(url.removeprefix("http://"), timeout=TIMEOUT_S)


def without_its_body(url: str, path: str, kind: str, token: str) -> tuple[int, str]:
    """Sends the head of a request and none of its body. Returns the status and what the answer says."""
    sending = connected(url)
    try:
        sending.putrequest("POST", path)
        for name, value in {"Content-Type": kind, "Content-Length": "99", "Authorization": f"Bearer {token}"}.items():
            sending.putheader(name, value)
        sending.endheaders()
        answer = sending.getresponse()
        return answer.status, answer.read().decode()
    finally:
        sending.close()


@pytest.mark.parametrize("path", TWINS)
def test_a_call_is_refused_before_its_body_arrives(guarded: str, path: str) -> None:
    assert without_its_body(guarded, path, JSON, "wrong")[0] == 401
    status, said = without_its_body(guarded, path, JSON, "of-metrics")
    assert (status, "it needs the scope" in said) == (403, True)


@pytest.mark.parametrize("kind", [JSON, "application/x-www-form-urlencoded"])
@pytest.mark.parametrize("path", ["/translate", "/detect"])
def test_a_call_of_libretranslate_is_refused_before_its_body_arrives(guarded: str, path: str, kind: str) -> None:
    assert without_its_body(guarded, path, kind, "wrong")[0] == 403
    assert without_its_body(guarded, path, kind, "of-metrics")[0] == 403


def test_a_stream_is_refused_before_its_lines_arrive(guarded: str) -> None:
    assert without_its_body(guarded, "/v1/stream", "application/x-ndjson", "wrong")[0] == 401


def test_a_caller_without_rate_left_is_refused_before_the_body_arrives(guarded: str) -> None:
    with httpx.Client(base_url=guarded, headers={"Authorization": "Bearer of-slow"}, timeout=TIMEOUT_S) as web:
        assert web.post("/v1/translate", json={"texts": ["a"]}).status_code == 200
    for path in ("/v1/translate", "/v1/score", "/v1/tokens", "/v1/document", "/translate"):
        status, said = without_its_body(guarded, path, JSON, "of-slow")
        assert (status, "ask the operator for a higher rate" in said) == (429, True)


def test_a_key_in_the_body_is_found_without_parsing_it(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def noted(body: bytes) -> dict[str, Any]:
        parsed.append(body)
        return {}

    for name in ("_from_json", "_from_form"):
        monkeypatch.setattr(libretranslate, name, noted)
    text = 'b"api_key": "of-slow"'
    with httpx.Client(base_url=guarded, timeout=TIMEOUT_S) as web:
        for key in ({}, {"api_key": "wrong"}, {"api_key": 5}, {"api_key": '\\"of-slow'}):
            assert web.post("/translate", json={"q": text, **key}).status_code == 403
            assert web.post("/detect", data={"q": text, **key}).status_code == 403
        assert (
            web.post("/translate", content=b'"api_key":' * 100_000, headers={"Content-Type": JSON}).status_code == 403
        )
        assert parsed == []
        assert web.post("/detect", json={"q": text, "api_key": "of-slow"}).status_code == 400  # the patch lost q
        assert web.post("/detect?api_key=of-slow", data={"q": text}).status_code == 400
        assert web.post("/detect", data={"q": text, "api_key": "of-slow"}).status_code == 400
        assert len(parsed) == 3
        large = web.post("/translate", data={"q": "x" * libretranslate.KEYED_BYTES, "api_key": "of-slow"})
        assert (large.status_code, "send the key in the header" in large.json()["error"]) == (413, True)
        large = web.post("/translate?api_key=", data={"q": "x" * libretranslate.KEYED_BYTES})
        assert large.status_code == 413, "an empty key is none"


class Name(str):
    """A name that counts comparisons."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str(self) == str(other)

    def __hash__(self) -> int:
        return super().__hash__()


def test_a_repeated_name_is_found_by_looking_at_each_name_once() -> None:
    names = [Name(f"name-{n}") for n in range(2000)]
    with pytest.raises(ValueError, match="'name-1999' is given twice"):
        bodies._object([(name, 0) for name in (*names, Name("name-1999"))])
    assert Name.compared < 2 * len(names)
    with pytest.raises(InvalidRequestError, match="'text' is given twice"):
        bodies.message_from_json(b'{"texts": [], "text": 1, "text": 2}', cast(Any, pb.TranslateRequest.DESCRIPTOR))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_are_the_same_however_they_arrive(size: int) -> None:
    sent = b"\n\nfirst\n  \nsecond line\r\n\nlast"

    class Parts:
        async def stream(self) -> AsyncIterator[bytes]:
            for start in range(0, len(sent), size):
                yield sent[start : start + size]

    async def lines(most: int) -> list[BodyLine]:
        return [line async for line in Lines(cast(Request, Parts()), most)]

    found = asyncio.run(lines(100))
    assert found == [b"first", b"second line\r", b"last"]
    assert [line.number for line in found] == [3, 5, 7]
    cut = asyncio.run(lines(8))
    assert cut == [b"first", b"second l"]
    assert [line.is_cut for line in cut] == [False, True]
    assert asyncio.run(lines(1))[-1].is_cut


def half_sent(url: str, data: bytes) -> socket.socket:
    host, _, port = url.removeprefix("http://").rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
    connection.sendall(data)
    return connection


def rest_of(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection. Fails if it never does."""
    got = b""
    try:
        while part := connection.recv(65536):
            got += part
    except ConnectionError:
        pass
    return got


HEAD = b"POST /v1/translate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 99\r\n"


def test_connections_have_a_limit_and_half_sent_heads_a_time(
    tmp_path: Path, factory: FakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "KEEP_ALIVE_S", 1)  # bounds the last of what is begun below
    with serving(tmp_path, factory, max_connections=4) as (_, url), ExitStack() as stack:
        held = [stack.enter_context(half_sent(url, HEAD)) for _ in range(4)]
        for _ in range(56):
            with half_sent(url, b"") as refused:
                assert rest_of(refused) == b""
        for connection in held:
            connection.close()
        monkeypatch.setattr(listener._Protocol, "head_s", SHORT_S)
        for begun in (b"", b"G", HEAD, HEAD + b"\r\n" + b" " * 99 + b"GET / HTTP"):
            with half_sent(url, begun) as connection:
                answer = rest_of(connection)
                assert answer.startswith(b"HTTP/1.1 400") == (b"GET" in begun)
        monkeypatch.undo()
        assert httpx.get(f"{url}/health/live", timeout=TIMEOUT_S).status_code == 200


def test_a_body_has_a_time_whether_it_is_read_or_not(
    tmp_path: Path, factory: FakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", SHORT_S)
    monkeypatch.setattr(listener._Protocol, "rest_s", SHORT_S)
    with serving(tmp_path, factory, token="secret") as (_, url):
        for path in (b"/v1/translate", b"/translate"):
            admitted = HEAD.replace(b"/v1/translate", path) + b"Authorization: Bearer secret\r\n\r\n{"
            with half_sent(url, admitted) as connection:
                answer = rest_of(connection)
            assert answer.startswith(b"HTTP/1.1 408")
            assert b"the body did not arrive within 0.2 seconds" in answer
        for begun in (
            HEAD + b"\r\n",
            HEAD.replace(b"/v1/translate", b"/health/live").replace(b"POST", b"GET") + b"\r\n",
        ):
            with half_sent(url, begun) as connection:
                answer = rest_of(connection)
            assert answer.startswith((b"HTTP/1.1 401", b"HTTP/1.1 200"))


def test_the_system_asks_whether_a_silent_client_is_there(tmp_path: Path, factory: FakeFactory) -> None:
    """A client whose machine has ended sends nothing more: the system closes the connection for it."""
    with serving(tmp_path, factory) as (running, url), httpx.Client(base_url=url) as web:
        assert web.get("/health/live").status_code == 200
        assert running.server is not None
        held: Any = running.server._listener
        (connection,) = held._socket.counted
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == listener.PROBE_S
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == listener.PROBES

"""Requests made from the OpenAPI document by schemathesis, and raw bytes, at a server in a process of its own.

`HMC_FUZZ=700 python -m pytest -s tests/serving/http/test_fuzz.py` makes up to so many requests for each operation and
mode, about 20 000 in all; the default keeps the test short.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from tests.serving.attacked import Attacked, attacked, send_raw

SHORT = 4
REQUESTS = int(os.environ.get("HMC_FUZZ", SHORT))
pytestmark = pytest.mark.timeout(600 if REQUESTS == SHORT else 0)
STREAM = "/v1/stream"
ALLOWED_MIB = 64
"""What the server may grow by in a long run: heaps, and what ONNX Runtime keeps for the shapes that it met. In a short
run the allocator decides most of it, so a short run only says it."""
few = settings(
    max_examples=REQUESTS,
    deadline=None,
    derandomize=REQUESTS == SHORT,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
STARTS = (
    b"", b"GET / HTTP/1.1\r\n", b"POST /v1/translate HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n",
    b"POST /v1/stream HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET /" + b"a" * 70_000,
)  # fmt: skip


@schemathesis.serializer("application/x-ndjson")
def lines(_context: Any, value: Any) -> bytes:
    """The body of a stream: any text, as JSON lines have no schema in OpenAPI 3.1."""
    return str(value).encode("utf-8", "replace")


EXCLUDED: list[Any] = [
    positive_data_acceptance,  # values may fit the schema and not each other, such as two selectors
    negative_data_rejection,  # protobuf's JSON takes more than the schema says: null, numbers in strings
    not_a_server_error,  # a time of 1 ms ends with 504
]
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


@pytest.fixture(scope="module")
def server(tiny_bundle: Path) -> Iterator[Attacked]:
    with attacked(tiny_bundle) as running:
        yield running


def translated(server: Attacked) -> str:
    """What the server still says to a good request."""
    response = httpx.post(f"{server.url}/v1/translate", json={"texts": ["A man rides a bicycle."]}, timeout=600)
    return str(response.json()["translations"][0]["text"])


def test_no_request_made_from_the_document_breaks_the_server(server: Attacked) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    statuses: Counter[int] = Counter()
    expected, before = translated(server), server.bytes
    operations: list[Any] = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    for operation in operations:
        for mode in MODES:
            if mode is GenerationMode.NEGATIVE and (not operation.body or operation.path == STREAM):
                continue  # nothing to get wrong: extra parameters are allowed, and a stream may be any text

            @few
            @given(case=operation.as_strategy(generation_mode=mode))
            def send(case: Any) -> None:
                response = case.call(timeout=60)
                statuses[response.status_code] += 1
                assert response.status_code not in (500, 502), response.text
                case.validate_response(response, excluded_checks=EXCLUDED)

            send()
    grown = server.bytes - before
    print(f"\n{statuses.total()} requests: {dict(statuses)}; memory {before / 2**20:.1f} {grown / 2**20:+.1f} MiB")
    assert len(operations) >= 18
    assert {200, 400} <= set(statuses)
    assert REQUESTS == SHORT or grown < ALLOWED_MIB * 2**20
    server.check_alive()
    assert translated(server) == expected


def test_raw_bytes_on_the_http_socket_do_no_harm(server: Attacked) -> None:
    expected, before, said = translated(server), server.bytes, Counter[bytes]()

    @settings(few, max_examples=max(30, REQUESTS * 3))
    @given(st.sampled_from(STARTS), st.binary(max_size=300))
    def send(start: bytes, data: bytes) -> None:
        said[send_raw(server.url.removeprefix("http://"), start + data).split(b"\r\n")[0][:20]] += 1

    send()
    grown = server.bytes - before
    print(f"\n{said.total()} connections: {dict(said)}; memory {before / 2**20:.1f} {grown / 2**20:+.1f} MiB")
    assert not any(b" 500" in line for line in said)
    assert REQUESTS == SHORT or grown < ALLOWED_MIB * 2**20
    server.check_alive()
    assert translated(server) == expected

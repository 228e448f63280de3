"""JSON twins of the RPCs, on a real socket."""

from __future__ import annotations

import gzip
import http.client
import json
from contextlib import closing
from typing import Any

import httpx
import pytest
from tests.serving.fakes import FakeFactory

from hmc.serving.http.bodies import MAX_BODY_BYTES
from hmc.v1 import translation_pb2 as pb


def refusal(response: httpx.Response) -> tuple[int, str, str]:
    said = response.json()
    assert set(said) == {"code", "message", "details"}
    return response.status_code, said["code"], said["message"]


def test_translate_answers_as_the_rpc_does(web: httpx.Client) -> None:
    response = web.post("/v1/translate", json={"texts": ["a", "b"], "level": {"name": "h12"}, "options": {"nBest": 2}})
    said = response.json()
    assert response.headers["content-type"] == "application/json"
    assert [one["text"] for one in said["translations"]] == ["h12:a", "h12:b"]
    assert said["translations"][0]["alternatives"][0]["text"] == "a #1"
    assert (said["level"], said["queueMs"], said["computeMs"]) == ("h12", 1.0, 2.0)


def test_fields_may_have_the_names_of_the_proto(web: httpx.Client) -> None:
    body = {"texts": ["a"], "target_prefixes": ["x"], "options": {"beam_size": 2}}
    assert web.post("/v1/translate", json=body).json()["translations"][0]["text"] == "full:a|x|prefix"


def test_score(web: httpx.Client) -> None:
    said = web.post("/v1/score", json={"texts": ["a"], "references": ["b"]}).json()
    assert said["translations"][0]["text"] == "full:a|b|given"


def test_levels_have_64_bit_numbers_as_strings(web: httpx.Client) -> None:
    said = web.get("/v1/levels").json()
    assert [(one["name"], one["parameters"]) for one in said["levels"]] == [
        ("full", "4000"), ("h12", "2000"), ("h6", "1000"),
    ]  # fmt: skip
    assert (said["sourceLanguage"], said["targetLanguage"]) == ("en", "de")


def test_every_unknown_field_is_named(web: httpx.Client) -> None:
    body = {"texts": ["a"], "foo": 1, "options": {"beamSize": 2, "bar": 3}, "level": {"nam": "x"}}
    status, code, message = refusal(web.post("/v1/translate", json=body))
    assert (status, code) == (400, "INVALID_ARGUMENT")
    assert "unknown fields: foo, options.bar, level.nam; TranslateRequest has texts, level" in message
    assert "unknown fields: modle" in refusal(web.get("/v1/levels?modle=x"))[2]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b"\xff", "not UTF-8"),
        (b'{"texts": ["a"], "texts": ["b"]}', "'texts' is given twice"),
        (b'{"targetPrefixes": [], "target_prefixes": []}', "target_prefixes is given twice, as target_prefixes and"),
        (b'{"options": {"lengthPenalty": NaN}}', "NaN is not JSON"),
        (b'{"texts": "a"}', "does not fit"),
        (b'{"texts": ["\\ud800"]}', "Unpaired surrogate"),
        (b'{"level": {"name": "full", "auto": true}}', "does not fit"),
        (b'{"options": {"beamSize": 99999999999}}', "does not fit"),
        (b'{"texts": []}', "texts"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_bodies_that_cannot_be_read(web: httpx.Client, body: bytes, message: str) -> None:
    response = web.post("/v1/translate", content=body, headers={"Content-Type": "application/json"})
    status, code, said = refusal(response)
    assert (status, code) == (400, "INVALID_ARGUMENT")
    assert message in said


def test_only_json_is_taken(web: httpx.Client) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        response = web.post("/v1/admin/reload", content=b"{}", headers={"Content-Type": kind})
        assert refusal(response)[:2] == (415, "INVALID_ARGUMENT")
    assert web.post("/v1/admin/reload").status_code == 415


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/v1/translate", "application/json"), ("/v1/stream", "application/x-ndjson"), ("/translate", "application/json")],
)
def test_packed_bodies_are_refused_as_such(web: httpx.Client, path: str, kind: str) -> None:
    headers = {"Content-Type": kind, "Content-Encoding": "gzip"}
    response = web.post(path, content=gzip.compress(b'{"text": "a"}'), headers=headers)
    assert response.status_code == 415
    assert "the body is packed (gzip)" in response.text


def test_the_line_of_a_stream_that_cannot_be_read_is_named(web: httpx.Client) -> None:
    body = '{"id": "1", "text": "a"}\n\n{"id": "2", "texts": ["b"]}\n{"id": "3", "text": "c"}\n'
    response = web.post("/v1/stream", content=body, headers={"Content-Type": "application/x-ndjson"})
    last = json.loads(response.text.splitlines()[-1])["error"]
    assert last["code"] == "INVALID_ARGUMENT"
    assert last["message"].startswith("line 3: unknown fields: texts")


def test_large_bodies(web: httpx.Client) -> None:
    large = web.post("/v1/translate", json={"texts": ["a" * 40_000] * 4}).json()
    assert large["translations"][3]["text"] == "full:" + "a" * 40_000
    headers = {"Content-Type": "application/json"}
    response = web.post("/v1/translate", content=b" " * (MAX_BODY_BYTES + 1), headers=headers)
    assert refusal(response)[0] == 413


def test_statuses(web: httpx.Client) -> None:
    assert refusal(web.post("/v1/translate", json={"texts": ["a"], "level": {"name": "nope"}}))[:2] == (
        404,
        "NOT_FOUND",
    )
    status, code, message = refusal(web.post("/v1/translate", json={"texts": ["crash"]}))
    assert (status, code) == (500, "INTERNAL")
    assert "secret" not in message
    assert refusal(web.get("/v1/nowhere"))[:2] == (404, "NOT_FOUND")
    response = web.delete("/v1/translate")
    assert refusal(response)[:2] == (405, "UNIMPLEMENTED")
    assert response.headers["allow"] == "POST"


def test_a_full_queue_says_when_to_come_back(web: httpx.Client, fakes: FakeFactory) -> None:
    response = web.post("/v1/translate", json={"texts": ["hold"] * 9, "level": {"name": "h6"}})
    assert refusal(response)[:2] == (429, "RESOURCE_EXHAUSTED")
    assert int(response.headers["retry-after"]) >= 1
    assert fakes["h6"].pending == 0


def test_a_call_ends_at_its_deadline(web: httpx.Client, fakes: FakeFactory) -> None:
    body = {"texts": ["hold"], "level": {"name": "h12"}}
    response = web.post("/v1/translate", json=body, headers={"X-Timeout-Ms": "50"})
    assert refusal(response)[:2] == (504, "DEADLINE_EXCEEDED")
    fakes["h12"].wait_for(lambda: fakes["h12"].pending == 0)
    response = web.post("/v1/translate", json=body, headers={"X-Timeout-Ms": "soon"})
    assert "X-Timeout-Ms 'soon': give milliseconds" in refusal(response)[2]


def events(text: str) -> list[tuple[str, Any]]:
    """Name and data of each server-sent event."""
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((fields.get("event", "message"), json.loads(fields["data"])))
    return found


def test_tokens_as_events_and_at_once(web: httpx.Client) -> None:
    response = web.post("/v1/tokens", json={"text": "a"}, headers={"Accept": "text/event-stream"})
    assert response.headers["content-type"].startswith("text/event-stream")
    *pieces, done, end = events(response.text)
    assert "".join(data["text"] for _, data in pieces) == done[1]["done"]["translations"][0]["text"] == "full:a"
    assert end == ("end", {})
    assert web.post("/v1/tokens", json={"text": "a"}).json()["translations"][0]["text"] == "full:a"


def test_an_error_before_the_first_event_has_its_status(web: httpx.Client) -> None:
    body = {"text": "a", "level": {"name": "nope"}}
    assert refusal(web.post("/v1/tokens", json=body, headers={"Accept": "text/event-stream"}))[0] == 404


def test_an_error_between_events_is_an_event(web: httpx.Client) -> None:
    response = web.post("/v1/tokens", json={"text": "crash"}, headers={"Accept": "text/event-stream"})
    *_, (name, said) = events(response.text)
    assert (response.status_code, name, said["code"]) == (200, "error", "INTERNAL")


def test_a_stream_of_lines(web: httpx.Client) -> None:
    lines = [json.dumps({"id": str(n), "text": f"text {n}"}) for n in range(20)]
    headers = {"Content-Type": "application/x-ndjson"}
    response = web.post("/v1/stream", content="\n".join(lines), headers=headers)
    answers = {said["id"]: said["translation"]["text"] for said in map(json.loads, response.text.splitlines())}
    assert answers == {str(n): f"full:text {n}" for n in range(20)}
    *_, last = map(
        json.loads, web.post("/v1/stream", content='{"x": 1}\n', headers=headers).text.splitlines() or ["{}"]
    )
    assert last.get("error", last)["code"] == "INVALID_ARGUMENT"


def test_answers_of_a_stream_come_while_lines_are_sent(web: httpx.Client) -> None:
    """Each line is sent when the line before it has been answered. httpx would send them all first."""

    def send(n: int) -> None:
        line = json.dumps({"id": str(n), "text": "a"}).encode() + b"\n"
        connection.send(b"%x\r\n%s\r\n" % (len(line), line))

    connection = http.client.HTTPConnection(web.base_url.host, web.base_url.port or 80, timeout=20)
    with closing(connection):
        connection.putrequest("POST", "/v1/stream")
        connection.putheader("Content-Type", "application/x-ndjson")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        send(0)
        response = connection.getresponse()
        for n in range(1, 4):
            assert json.loads(response.readline())["id"] == str(n - 1)
            send(n)
        connection.send(b"0\r\n\r\n")
        assert [json.loads(line)["id"] for line in response.read().splitlines()] == ["3"]


def test_administration(web: httpx.Client) -> None:
    assert web.post("/v1/admin/unload-level", json={"name": "h6"}).json()["level"]["loaded"] is False
    assert refusal(web.post("/v1/translate", json={"texts": ["a"], "level": {"name": "h6"}}))[:2] == (
        400,
        "FAILED_PRECONDITION",
    )
    assert web.post("/v1/admin/load-level", json={"name": "h6"}).json()["level"]["loaded"] is True
    assert web.post("/v1/admin/reload", json={}).json()["bundleVersion"]


def test_request_ids_are_echoed_or_made(web: httpx.Client) -> None:
    assert web.get("/v1/levels", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    made = [web.get("/v1/levels", headers={"X-Request-Id": given}).headers["x-request-id"] for given in ("", "a b")]
    assert [len(one) for one in made] == [32, 32]


def test_every_rpc_has_a_twin(web: httpx.Client) -> None:
    paths = web.get("/openapi.json").json()["paths"]
    offered = {operation.get("operationId") for one in paths.values() for operation in one.values()}
    assert offered >= {m.name for service in pb.DESCRIPTOR.services_by_name.values() for m in service.methods}

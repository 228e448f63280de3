"""Details of refused requests, names of calls, and time limits of the texts of a stream, on a real socket."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from google.rpc.error_details_pb2 import BadRequest
from grpc_status import rpc_status
from tests.serving.fakes import FakeFactory
from tests.serving.hostile import METHODS

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import Violation
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.edge import Edge
from hmc.v1 import translation_pb2 as pb

BAD: dict[str, Any] = {
    "Translate": pb.TranslateRequest(level=pb.LevelSelector(max_heads=-1)),
    "TranslateTokens": pb.TranslateTokensRequest(options=pb.DecodingOptions(beam_size=0, n_best=0)),
    "Score": pb.ScoreRequest(references=["a"]),
    "ListLevels": pb.ListLevelsRequest(model="x" * 201),
    "LoadLevel": pb.LoadLevelRequest(),
    "UnloadLevel": pb.UnloadLevelRequest(),
    "Reload": pb.ReloadRequest(bundle_path=""),
    "TranslateDocument": pb.TranslateDocumentRequest(segmentation=3),  # type: ignore[arg-type]
    "SetDefaultLevel": pb.SetDefaultLevelRequest(),
}


def refused(channel: grpc.Channel, name: str, request: Any, metadata: Any = ()) -> Any:
    method = METHODS[name]
    path = f"/{method.containing_service.full_name}/{name}"
    kind = channel.unary_stream if method.server_streaming else channel.unary_unary
    call: Any = kind(path, None, GetMessageClass(method.output_type).FromString)
    try:
        list(call(request.SerializeToString(), timeout=30, metadata=metadata))
    except grpc.RpcError as error:
        return error
    pytest.fail(f"{name} was not refused")


@pytest.mark.parametrize("name", sorted(BAD))
def test_every_call_checks_its_request(channel: grpc.Channel, name: str) -> None:
    error = refused(channel, name, BAD[name])
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        pytest.skip(f"{name} is not implemented yet")
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    status, details = rpc_status.from_call(error), BadRequest()
    assert status.details[0].Unpack(details)
    assert all(one.field and one.description in error.details() for one in details.field_violations)
    assert len(details.field_violations) >= (2 if name in ("Translate", "Score", "TranslateTokens") else 1)


def test_the_client_has_the_violations(client: Client, stub: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        client.translate(["a", "x" * 70_000], segmentation="none")
    (found,) = caught.value.violations
    assert found.field == "texts[1]"
    (answer,) = stub.TranslateStream(iter([pb.TranslateStreamRequest(id="1", timeout_ms=-1)]))
    assert [(one.field, one.description) for one in answer.error.violations] == [
        ("timeout_ms", "timeout_ms -1: choose 1 or more")
    ]


def test_violations_that_do_not_fit_into_the_trailers_are_counted(channel: grpc.Channel) -> None:
    options = pb.DecodingOptions(suppressed_tokens=["é" * 1001] * 200)
    error = refused(channel, "Translate", pb.TranslateRequest(texts=["a"], options=options))
    details = BadRequest()
    rpc_status.from_call(error).details[0].Unpack(details)
    shown = len(details.field_violations) - 1
    assert 5 < shown < 200
    assert details.field_violations[-1].description == f"{200 - shown} more: mend these first"


def test_a_long_name_in_letters_of_many_bytes_comes_back_in_a_message(channel: grpc.Channel) -> None:
    error = refused(channel, "LoadLevel", pb.LoadLevelRequest(name="漢" * 200))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert "漢漢" in error.details()


def test_calls_have_names(stub: Any, channel: grpc.Channel, caplog: pytest.LogCaptureFixture) -> None:
    request = pb.TranslateRequest(texts=["a"])
    _, call = stub.Translate.with_call(request, metadata=(("x-request-id", "mine-1"),))
    assert dict(call.trailing_metadata())["x-request-id"] == "mine-1"
    made = [dict(stub.Translate.with_call(request)[1].trailing_metadata())["x-request-id"] for _ in range(2)]
    assert len(set(made)) == 2
    with caplog.at_level(logging.ERROR):
        error = refused(channel, "Translate", pb.TranslateRequest(texts=["crash"]), (("x-request-id", "mine-2"),))
    assert dict(error.trailing_metadata())["x-request-id"] == "mine-2"
    assert "request mine-2" in caplog.text
    error = refused(channel, "Translate", request, (("x-request-id", "a b"),))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "x-request-id in the metadata" in error.details()


def test_a_text_of_a_stream_has_its_own_deadline(stub: Any, factory: FakeFactory) -> None:
    full = factory["full"]
    requests = [
        pb.TranslateStreamRequest(id="late", text="hold", timeout_ms=50),
        pb.TranslateStreamRequest(id="fine", text="b", timeout_ms=60_000),
    ]
    answers = {answer.id: answer for answer in stub.TranslateStream(iter(requests), timeout=30)}
    assert answers["late"].error.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    assert "timeout_ms of 50" in answers["late"].error.message
    assert answers["fine"].translation.text == "full:b"
    full.wait_for(lambda: full.pending == 0)  # its place is free, although the text never ended


def test_a_violation_is_plain_data() -> None:
    assert InvalidRequestError("a", [Violation("b", "c")]).violations == (Violation("b", "c"),)
    assert InvalidRequestError("a").violations == ()


def test_methods_are_wrapped_once(bundle: Path, factory: FakeFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each call, as gRPC's interceptors would."""
    wrapped: list[str] = []
    wrap = Edge.wrap

    def noted(self: Edge, method: str, handler: Any) -> Any:
        wrapped.append(method)
        return wrap(self, method, handler)

    monkeypatch.setattr(Edge, "wrap", noted)
    with BackgroundServer(bundle, factory=factory) as server, Client(server.address) as client:
        before = len(wrapped)
        assert before
        for _ in range(3):
            client.translate(["a"])
        assert len(wrapped) == before

"""Limits of a call, which keep one caller from holding up the others, and errors of the client itself."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.serving.fakes import GUARD_S, FakeFactory, eventually

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import DeadlineExceededError, UnavailableError
from hmc.serving import DecodeOptions
from hmc.serving.client import Client
from hmc.serving.server import handlers
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings
from hmc.serving.wire.rules import AnswerSize
from hmc.v1 import translation_pb2 as pb
from hmc.v1 import translation_pb2_grpc as rpc


def test_a_call_that_never_fits_into_the_queue(bundle: Path, factory: FakeFactory) -> None:
    settings = ServerSettings(port=0, queue_size=3)
    with BackgroundServer(bundle, settings, factory) as server, Client(server.address) as client:
        assert len(client.translate(["a"] * 3)) == 3
        with pytest.raises(InvalidRequestError, match="4 texts in one call, but at most 3 are allowed: split"):
            client.translate(["a"] * 4)


def test_an_answer_that_cannot_be_sent_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "AnswerSize", lambda: AnswerSize(20_000))
    assert len(client.translate(["a" * 1000] * 8)) == 8
    with pytest.raises(InvalidRequestError, match=r"larger than 0 MiB.*send fewer texts in a call"):
        client.translate(["a" * 1000] * 8, options=DecodeOptions(n_best=4))


def test_changes_that_wait_hold_up_no_other_call(client: Client, factory: FakeFactory) -> None:
    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(client.translate, ["hold"], "h6")
        factory["h6"].wait_for(lambda: factory["h6"].pending == 1)
        waiting = pool.submit(client.unload_level, "h6")
        eventually(lambda: not {level.name: level.loaded for level in client.levels().levels}["h6"])
        for _ in range(40):
            with pytest.raises(DeadlineExceededError):
                client.unload_level("h6", timeout=0.05)
        listed = {level.name: level.loaded for level in client.levels(timeout=GUARD_S).levels}
        assert listed == {"full": True, "h12": True, "h6": False}
        client.unload_level("h12", timeout=GUARD_S)
        assert client.load_level("h12", timeout=GUARD_S).loaded
        factory["h6"].release.set()
        assert held.result(GUARD_S)[0].text == "h6:hold"
        assert not waiting.result(GUARD_S).loaded
    assert factory["h6"].closed == "drained"


def test_a_server_that_closes_waits_for_a_level_that_is_unloaded(bundle: Path, factory: FakeFactory) -> None:
    settings = ServerSettings(port=0, drain_seconds=GUARD_S)
    with (
        BackgroundServer(bundle, settings, factory) as server,
        Client(server.address) as client,
        grpc.insecure_channel(server.address) as channel,
    ):
        thread = threading.Thread(target=lambda: client.translate(["hold"], "h6"))
        thread.start()
        factory["h6"].wait_for(lambda: factory["h6"].pending == 1)
        admin: Any = rpc.AdminServiceStub(channel)
        call = admin.UnloadLevel.future(pb.UnloadLevelRequest(name="h6"))
        eventually(lambda: not {level.name: level.loaded for level in client.levels().levels}["h6"])
        call.cancel()
        factory["h6"].release.set()
        thread.join(GUARD_S)
    assert factory["h6"].closed == "drained"


def test_a_reload_of_an_empty_path_is_refused(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError, match="bundle_path is empty: leave it out"):
        rpc.AdminServiceStub(channel).Reload(pb.ReloadRequest(bundle_path=""))


@pytest.mark.parametrize("texts", [["a"] * 11, ["a", "b" * 70_000]])
def test_a_refused_request_does_not_stay_in_memory(channel: grpc.Channel, texts: list[str]) -> None:
    """It is freed at once, and not when the garbage collector next runs, which may be hundreds of calls later."""
    # The call sends bytes, so only the server makes request objects.
    call: Any = channel.unary_unary("/hmc.v1.TranslationService/Translate")
    data = pb.TranslateRequest(texts=texts, segmentation=pb.SEGMENTATION_NONE).SerializeToString()
    gc.collect()
    before = list(map(type, gc.get_objects())).count(pb.TranslateRequest)  # objects of earlier tests
    gc.disable()
    try:
        for _ in range(3):
            with pytest.raises(grpc.RpcError, match="texts"):
                call(data)
        eventually(lambda: list(map(type, gc.get_objects())).count(pb.TranslateRequest) <= before)
    finally:
        gc.enable()


SURROGATE = "a\ud800"
MISUSES: list[tuple[str, Callable[[Any], Any]]] = [
    ("texts takes a list: put a single", lambda c: c.translate("ab")),
    ("texts takes a list, and not a generator", lambda c: c.translate(x for x in ["a"])),
    (r"texts\[1\] is None: give a text", lambda c: c.translate(["a", None])),
    (r"references\[0\] is 3", lambda c: c.score(["a"], [3])),
    ("texts takes a list", lambda c: list(c.translate_stream("ab"))),
    ("target_prefixes takes a list", lambda c: list(c.translate_stream(["a"], target_prefixes="E"))),
    ("text 1 is None", lambda c: list(c.translate_stream(["a", None]))),
    ("level is 5: give a text", lambda c: c.translate(["a"], 5)),
    ("level cannot be written as UTF-8", lambda c: c.translate(["a"], SURROGATE)),
    ("level cannot be written as UTF-8", lambda c: c.load_level(SURROGATE)),
    ("level cannot be written as UTF-8", lambda c: c.unload_level(SURROGATE)),
    ("bundle cannot be written as UTF-8", lambda c: c.reload(SURROGATE)),
    (
        r"suppressed_phrases\[0\] cannot be written as UTF-8",
        lambda c: c.translate(["a"], options=DecodeOptions(suppressed_phrases=(SURROGATE,))),
    ),
]


@pytest.mark.parametrize(("message", "misuse"), MISUSES)
def test_the_client_names_the_bad_argument(client: Client, message: str, misuse: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        misuse(client)


def test_a_closed_client(server: BackgroundServer) -> None:
    client = Client(server.address)
    client.close()
    for call in (lambda: client.translate(["a"]), client.levels, lambda: list(client.translate_stream(["a"]))):
        with pytest.raises(UnavailableError, match="is closed: open another one"):
            call()

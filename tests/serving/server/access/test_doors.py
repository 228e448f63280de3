"""The address for admin, the root of bundles, and limits of connections, on a real server."""

from __future__ import annotations

import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.processes import environment
from tests.serving.certificates import make_certificate
from tests.serving.fakes import GUARD_S, FakeFactory, eventually, failure, wait_for, write_bundle
from tests.serving.hostile import PREFACE

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import (
    FailedPreconditionError,
    OverloadedError,
    PermissionDeniedError,
    PortInUseError,
    UnavailableError,
)
from hmc.serving.client import ONCE, Client
from hmc.serving.requests.call import PresentCall
from hmc.serving.server.access import binding
from hmc.serving.server.access.binding import warnings_of
from hmc.serving.server.access.entry import Entry
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings
from hmc.v1 import translation_pb2 as pb
from hmc.v1 import translation_pb2_grpc as rpc


@pytest.mark.parametrize("kind", ["port", "unix"])
def test_admin_has_an_address_of_its_own(bundle: Path, factory: FakeFactory, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "admin.sock"
    settings = ServerSettings(port=0, admin_address="127.0.0.1:0" if kind == "port" else f"unix:{path}")
    with BackgroundServer(bundle, settings, factory) as running:
        assert running.server is not None
        admin_address = running.server.admin_address
        assert admin_address != running.address
        with Client(admin_address) as admin:
            admin.wait_ready(GUARD_S)
            assert not admin.unload_level("h6").loaded
        with grpc.insecure_channel(admin_address) as channel:
            code, _ = failure(lambda: rpc.TranslationServiceStub(channel).Translate(pb.TranslateRequest(texts=["a"])))
            assert code == "UNIMPLEMENTED"
        with grpc.insecure_channel(running.address) as channel:
            code, _ = failure(lambda: rpc.AdminServiceStub(channel).LoadLevel(pb.LoadLevelRequest(name="h6")))
            assert code == "UNIMPLEMENTED"
        with Client(running.address) as client:
            assert client.translate(["a"])[0].text == "full:a"
        if kind == "unix":
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            with pytest.raises(PortInUseError, match=r"another process listens on .*admin\.sock"):
                BackgroundServer(bundle, settings, FakeFactory()).__enter__()


def test_without_it_admin_is_beside_translation(bundle: Path, factory: FakeFactory) -> None:
    with BackgroundServer(bundle, ServerSettings(port=0), factory) as running:
        assert running.server is not None
        assert running.server.admin_address == running.address


def test_a_socket_that_nobody_listens_on_is_replaced(bundle: Path, factory: FakeFactory, tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with BackgroundServer(bundle, ServerSettings(port=0, admin_address=f"unix:{path}"), factory) as running:
        assert running.server is not None
        with Client(f"unix:{path}") as admin:
            assert admin.load_level("h6").loaded


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("localhost", "give HOST:PORT"),
        (":1", "give HOST:PORT"),
        ("localhost:x", "give HOST:PORT"),
        ("localhost:65536", "give HOST:PORT"),
        ("unix:", "name a file"),
        ("unix:/", "name a file"),
    ],
)
def test_admin_addresses_of_no_use(address: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        ServerSettings(admin_address=address)


def test_a_path_for_admin_that_cannot_be_used(bundle: Path, factory: FakeFactory, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path, said in (
        (tmp_path / "file", "is a file and no socket"),
        (tmp_path / "no" / "a.sock", "is missing or not"),
    ):
        running = BackgroundServer(bundle, ServerSettings(port=0, admin_address=f"unix:{path}"), factory)
        with pytest.raises(InvalidRequestError, match=said):
            running.__enter__()
    assert (tmp_path / "file").read_text() == "mine"


def test_reloads_stay_below_the_root(factory: FakeFactory, tmp_path: Path) -> None:
    inside, outside = tmp_path / "bundles", tmp_path / "elsewhere"
    first = write_bundle(inside / "v1")
    write_bundle(inside / "deep" / "v2", version="2" * 16)
    write_bundle(outside / "v3", version="3" * 16)
    (inside / "link").symlink_to(outside / "v3")
    (inside / "circle").symlink_to(inside / "circle")
    said = f"is not below {inside}, the folder that bundles may be loaded from"
    with BackgroundServer(first, ServerSettings(port=0), factory) as running, Client(running.address) as client:
        for path in (
            outside / "v3",
            inside / "link",
            inside / ".." / "elsewhere" / "v3",
            "/nowhere",
            f"{inside}2",
        ):
            with pytest.raises(PermissionDeniedError, match=said):
                client.reload(path)
        with pytest.raises((PermissionDeniedError, FailedPreconditionError)):
            client.reload(inside / "circle")
        assert client.translate(["a"]).bundle_version == "0123456789abcdef"
        assert client.reload(inside / "deep" / "v2") == "2" * 16
        assert client.reload(inside / "v1") == "0123456789abcdef"  # the root does not move with the bundle
        assert client.reload() == "0123456789abcdef"
    settings = ServerSettings(port=0, bundle_root=outside)
    with BackgroundServer(first, settings, factory) as running, Client(running.address) as client:
        assert client.reload(outside / "v3") == "3" * 16
        with pytest.raises(PermissionDeniedError, match="start the server with another bundle_root"):
            client.reload(first)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (ServerSettings(), []),
        (ServerSettings(host="0.0.0.0"), ["no token is set: anyone who can reach 0.0.0.0 may translate"]),
        (ServerSettings(host="0.0.0.0", token="t"), ["no TLS: tokens and texts that travel to 0.0.0.0 can be read"]),
        (ServerSettings(admin_address="[::]:0", token="t"), ["no TLS: tokens and texts that travel to :: can"]),
        (ServerSettings(admin_address="unix:/run/a.sock"), []),
    ],
)
def test_dangerous_settings_are_named(settings: ServerSettings, said: list[str]) -> None:
    assert [warning[: len(start)] for warning, start in zip(warnings_of(settings), said, strict=True)] == said


# ---- limits ----


def test_large_requests_and_metadata_are_refused(bundle: Path, factory: FakeFactory) -> None:
    settings = ServerSettings(port=0, max_message_mib=1, max_metadata_kib=4)
    with BackgroundServer(bundle, settings, factory) as running:
        with Client(running.address) as client:
            with pytest.raises(InvalidRequestError, match="the call is too large"):
                client.translate(["a" * 60_000] * 20)
            assert client.translate(["a"])[0].text == "full:a"
        with Client(running.address, token="x" * 5000) as client, pytest.raises(OverloadedError, match="metadata size"):
            client.translate(["a"])


def test_connections_beyond_the_limit_are_closed(bundle: Path, factory: FakeFactory) -> None:
    settings = ServerSettings(port=0, max_connections=1)
    with BackgroundServer(bundle, settings, factory) as running, Client(running.address) as first:
        assert first.translate(["a"])[0].text == "full:a"
        options = [("grpc.use_local_subchannel_pool", 1)]  # else channels of one process share a connection
        with grpc.insecure_channel(running.address, options) as channel:
            second: Any = rpc.TranslationServiceStub(channel)
            code, _ = failure(lambda: second.Translate(pb.TranslateRequest(texts=["b"]), timeout=GUARD_S))
            assert code == "UNAVAILABLE"
        assert first.translate(["a"])[0].text == "full:a"


def test_calls_of_one_connection_beyond_the_limit_wait(bundle: Path, factory: FakeFactory) -> None:
    settings = ServerSettings(port=0, max_streams=2)
    with BackgroundServer(bundle, settings, factory) as running, grpc.insecure_channel(running.address) as channel:
        stub: Any = rpc.TranslationServiceStub(channel)
        assert stub.Translate(pb.TranslateRequest(texts=["a"])).level == "full"  # the client now knows the limit
        calls = [stub.Translate.future(pb.TranslateRequest(texts=[f"hold {n}"])) for n in range(3)]
        full = factory["full"]
        full.wait_for(lambda: full.pending == 2)
        code, _ = failure(lambda: stub.Translate(pb.TranslateRequest(texts=["late"]), timeout=1))
        assert code == "DEADLINE_EXCEEDED"  # it waits behind the third, which waits too
        assert [text for text in full.texts if text.startswith("hold")] in (["hold 0", "hold 1"], ["hold 1", "hold 0"])
        full.release.set()
        assert [call.result(GUARD_S).translations[0].text for call in calls] == [f"full:hold {n}" for n in range(3)]


def test_old_connections_are_replaced_without_a_lost_call(
    bundle: Path, factory: FakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that outlives its connection's age ends well, and so do those that come after, on new connections."""
    peers: set[str] = set()
    admit = Entry.admit

    def noted(self: Entry, call: PresentCall, metadata: Any, context: Any) -> Any:
        peers.add(context.peer())
        return admit(self, call, metadata, context)

    monkeypatch.setattr(Entry, "admit", noted)
    settings = ServerSettings(port=0, connection_age_seconds=0.2, connection_idle_seconds=0)
    with BackgroundServer(bundle, settings, factory) as running, Client(running.address, retry=ONCE) as client:
        answered: list[str] = []
        held = threading.Thread(target=lambda: answered.append(client.translate(["hold"])[0].text))
        held.start()
        factory["full"].wait_for(lambda: factory["full"].pending == 1)
        with Client(running.address) as other:
            eventually(lambda: bool(other.levels(timeout=GUARD_S).levels) and len(peers) >= 6, 60)  # several ages long
        factory["full"].release.set()
        held.join(GUARD_S)
        assert answered == ["full:hold"]


def test_a_connection_without_calls_is_closed(bundle: Path, factory: FakeFactory) -> None:
    settings = ServerSettings(port=0, connection_idle_seconds=0.2)
    with BackgroundServer(bundle, settings, factory) as running, grpc.insecure_channel(running.address) as channel:
        closed, states = threading.Event(), list[grpc.ChannelConnectivity]()

        def see(state: grpc.ChannelConnectivity) -> None:
            states.append(state)
            if state is grpc.ChannelConnectivity.IDLE and grpc.ChannelConnectivity.READY in states:
                closed.set()

        channel.subscribe(see)
        stub: Any = rpc.TranslationServiceStub(channel)
        assert stub.Translate(pb.TranslateRequest(texts=["a"])).level == "full"
        assert closed.wait(600)
        assert stub.Translate(pb.TranslateRequest(texts=["a"])).level == "full"


def test_calls_of_an_old_connection_end_after_the_grace(bundle: Path, factory: FakeFactory) -> None:
    settings = ServerSettings(port=0, connection_age_seconds=0.2, connection_grace_seconds=0.2)
    with BackgroundServer(bundle, settings, factory) as running, Client(running.address, retry=ONCE) as client:
        with pytest.raises(UnavailableError):
            client.translate(["hold"], timeout=60)  # no translator ends this call
        factory["full"].release.set()
        with Client(running.address) as patient:  # opens another connection when this one is old
            assert patient.translate(["a"], timeout=60)[0].text == "full:a"


def test_a_client_without_a_server_is_told(tmp_path: Path) -> None:
    with Client(f"unix:{tmp_path}/nobody.sock") as client, pytest.raises(UnavailableError):
        client.levels(timeout=GUARD_S)


FROZEN = """
import sys, grpc
from hmc.v1 import translation_pb2 as pb, translation_pb2_grpc as rpc
stub = rpc.TranslationServiceStub(grpc.insecure_channel(sys.argv[1]))
if sys.argv[2] == "stream":
    def requests():
        yield pb.TranslateStreamRequest(id="1", text="hold")
        input()
    next(stub.TranslateStream(requests()))
else:
    stub.Translate(pb.TranslateRequest(texts=["hold"]))
"""


@pytest.mark.parametrize("kind", ["call", "stream"])
def test_a_client_that_vanishes_without_a_word_frees_its_place(
    bundle: Path, factory: FakeFactory, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its process is stopped, so that it answers nothing more, and its connection stays open."""
    monkeypatch.setattr(binding, "KEEPALIVE_MS", 200)
    monkeypatch.setattr(binding, "KEEPALIVE_ANSWER_MS", 200)
    with BackgroundServer(bundle, ServerSettings(port=0), factory) as running:
        command = [sys.executable, "-c", FROZEN, running.address, kind]
        leaving = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment())
        try:
            full = factory["full"]
            wait_for(full.changed, lambda: full.pending == 1, 60)
            leaving.send_signal(signal.SIGSTOP)
            wait_for(full.changed, full.futures[0].cancelled, 60)
        finally:
            leaving.kill()
            leaving.communicate()


def closed_by(running: BackgroundServer, sent: bytes) -> bytes:
    """Sends bytes to the gRPC port, and returns what comes until the server closes. Fails if it never does."""
    host, _, port = running.address.rpartition(":")
    got = b""
    with socket.create_connection((host, int(port)), timeout=600) as connection:
        connection.sendall(sent)
        try:
            while part := connection.recv(65536):
                got += part
        except ConnectionError:
            pass
    return got


@pytest.mark.parametrize("tls", [False, True])
def test_a_connection_that_never_begins_is_closed(
    bundle: Path, factory: FakeFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    monkeypatch.setattr(binding, "HANDSHAKE_MS", 200)
    cert, key = make_certificate(tmp_path) if tls else (None, None)
    with BackgroundServer(bundle, ServerSettings(port=0, tls_cert=cert, tls_key=key), factory) as running:
        said = closed_by(running, b"")
        assert tls or b"before handshake timeout" in said


def test_a_client_that_asks_for_answers_too_often_is_closed(bundle: Path, factory: FakeFactory) -> None:
    settings, ping = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]), bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + b"12345678"
    with BackgroundServer(bundle, ServerSettings(port=0), factory) as running:
        assert b"too_many_pings" in closed_by(running, PREFACE + settings + 20 * ping)

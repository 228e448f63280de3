"""Tokens, scopes, rates and sizes on a real server."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tests.serving.fakes import GUARD_S, FakeClock, FakeFactory, eventually, write_bundle

from hmc.artifact import HmcError, InvalidRequestError
from hmc.artifact.errors import OverloadedError, PermissionDeniedError, UnauthenticatedError
from hmc.serving.client import Client
from hmc.serving.requests.call import present_call
from hmc.serving.server.access import gate
from hmc.serving.server.access.gate import Allowance
from hmc.serving.server.access.tokens import line_of
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.handlers import Handlers
from hmc.serving.server.processes import membership
from hmc.serving.server.settings import ServerSettings

LINES = {
    "reader": line_of("reader", "t-reader", ["translate"], {"weight": 3.0}),
    "operator": line_of("operator", "t-operator", ["admin"], {}),
    "prometheus": line_of("prometheus", "t-prometheus", ["metrics"], {}),
    "slow": line_of("slow", "t-slow", ["translate"], {"texts_per_second": 0.001, "burst": 3}),
    "paced": line_of("paced", "t-paced", ["translate"], {"texts_per_second": 1, "burst": 1}),
    "small": line_of("small", "t-small", ["translate"], {"max_characters": 5}),
}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    path.write_text("\n".join(LINES.values()))
    return path


@pytest.fixture(scope="module")
def shared(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundServer]:
    """A server with all tokens, for tests that do not change the file."""
    settings = ServerSettings(port=0, tokens=tokens, token="t-all", metrics_port=0)
    with BackgroundServer(write_bundle(tmp_path_factory.mktemp("b") / "b"), settings, FakeFactory()) as running:
        yield running


def client_of(server: BackgroundServer, name: str) -> Client:
    return Client(server.address, token=f"t-{name}")


def test_scopes_open_services(shared: BackgroundServer) -> None:
    with client_of(shared, "reader") as reader:
        assert reader.translate(["a"])[0].text == "full:a"
        assert [a.result().text for a in reader.translate_stream(["b"])] == ["full:b"]
        with pytest.raises(PermissionDeniedError, match="'reader' may not do this: it needs the scope admin"):
            reader.load_level("h6")
    with client_of(shared, "operator") as operator:
        assert operator.load_level("h6").loaded
        for call in (
            lambda: operator.translate(["a"]),
            operator.levels,
            lambda: list(operator.translate_stream(["a"])),
        ):
            with pytest.raises(PermissionDeniedError, match="needs the scope translate, and has admin"):
                call()
    with client_of(shared, "all") as everything:
        everything.load_level("h6")
        everything.levels()
    with Client(shared.address) as anonymous, pytest.raises(UnauthenticatedError, match="requires a token"):
        anonymous.translate(["a"])


def test_reflection_needs_any_token(shared: BackgroundServer) -> None:
    with grpc.insecure_channel(shared.address) as channel, pytest.raises(grpc.RpcError, match="requires a token"):
        ProtoReflectionDescriptorDatabase(channel).get_services()


@pytest.mark.parametrize(
    ("token", "status"), [(None, 401), ("wrong", 401), ("t-reader", 403), ("t-prometheus", 200), ("t-all", 200)]
)
def test_metrics_need_their_scope(shared: BackgroundServer, token: str | None, status: int) -> None:
    assert shared.server is not None
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{shared.server.metrics_port}/metrics", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            found, body = response.status, response.read()
    except urllib.error.HTTPError as error:
        found, body = error.code, error.read()
    assert found == status
    assert (b"hmc_calls" in body) == (status == 200)


def test_a_rate_refuses_calls(shared: BackgroundServer) -> None:
    with client_of(shared, "slow") as slow:
        assert len(slow.translate(["a", "b", "c"])) == 3
        with pytest.raises(
            OverloadedError, match=r"'slow' may send 0\.001 texts a second, 3 at once, and has used them up"
        ):
            slow.translate(["a"])
        with pytest.raises(OverloadedError, match="try again in"):
            list(slow.translate_tokens("a"))


def test_a_rate_holds_up_streams(shared: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are answered, and none before the rate permits it."""
    clock = FakeClock()

    async def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(gate, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(membership, "Allowance", partial(Allowance, clock=clock))
    with client_of(shared, "paced") as paced:
        assert len(list(paced.translate_stream(["a"] * 20))) == 20
    assert clock.now == pytest.approx(19)


def test_sizes(shared: BackgroundServer) -> None:
    with client_of(shared, "small") as small:
        assert len(small.translate(["abc", "de"])) == 2
        with pytest.raises(InvalidRequestError, match="6 characters in one call, but 'small' may send at most 5"):
            small.translate(["abc", "def"])
        with pytest.raises(InvalidRequestError, match="6 characters"):
            small.translate(["abc"], target_prefixes=["def"])
        answers = [answer.error for answer in small.translate_stream(["abc", "abcdef", "de"])]
        assert [str(e)[:12] for e in answers if e is not None] == ["6 characters"]
        assert len(answers) == 3


def test_handlers_know_the_caller(shared: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, float]] = []
    lease = Handlers._lease

    async def noted(self: Handlers, *given: object) -> object:
        principal = present_call().principal
        seen.append((principal.name, principal.weight))
        return await lease(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Handlers, "_lease", noted)
    with client_of(shared, "reader") as reader, client_of(shared, "all") as everything:
        reader.translate(["a"])
        list(reader.translate_stream(["a"]))
        list(everything.translate_tokens("a"))
    assert seen == [("reader", 3.0), ("reader", 3.0), ("--token", 1.0)]


def test_tokens_rotate_under_load(
    bundle: Path, factory: FakeFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients move from an old token to a new one while both are in the file. No call fails."""
    path, stop = tmp_path / "tokens.toml", threading.Event()
    old, new = (line_of(name, f"t-{name}", ["translate"], {}) for name in ("old", "new"))
    path.write_text(old)
    present = ["old"]
    with BackgroundServer(bundle, ServerSettings(port=0, tokens=path), factory) as server:
        clients = {name: client_of(server, name) for name in ("old", "new")}

        def load() -> int:
            answered = 0
            while not stop.is_set():
                assert clients[present[0]].translate(["a"])[0].text == "full:a"
                answered += 1
            return answered

        def works(name: str) -> bool:
            try:
                return bool(clients[name].levels().levels)
            except UnauthenticatedError:
                return False

        with ThreadPoolExecutor(3) as pool:
            loads = [pool.submit(load) for _ in range(3)]
            try:
                assert not works("new")
                path.write_text("broken = ")
                eventually(lambda: "what was read before stays in force" in caplog.text, 30)
                assert works("old")
                path.write_text(f"{old}\n{new}")
                eventually(lambda: works("new"), 30)
                present[0] = "new"
            finally:
                stop.set()
            assert all(done.result(GUARD_S) for done in loads)
        path.write_text(new)
        eventually(lambda: not works("old"), 30)
        assert works("new")
        for client in clients.values():
            client.close()


def test_a_token_that_is_taken_away_ends_its_stream(bundle: Path, factory: FakeFactory, tmp_path: Path) -> None:
    path, more = tmp_path / "tokens.toml", threading.Semaphore(1)
    path.write_text(f"{LINES['reader']}\n{LINES['operator']}")
    with BackgroundServer(bundle, ServerSettings(port=0, tokens=path), factory) as server:

        def texts() -> Iterator[str]:
            while True:
                more.acquire()
                yield "a"

        with client_of(server, "reader") as reader, client_of(server, "operator") as operator:
            answers = reader.translate_stream(texts())
            assert next(answers).result().text == "full:a"
            path.write_text(LINES["operator"].replace("admin", "translate"))

            def opened() -> bool:
                try:
                    return bool(operator.levels())
                except PermissionDeniedError:
                    return False

            eventually(opened, 30)
            more.release()
            with pytest.raises(UnauthenticatedError, match="is not this server's"):
                next(answers)
            more.release()


def test_a_tokens_file_of_no_use_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(HmcError, match="tokens: cannot read"):
        ServerSettings(tokens=tmp_path / "nowhere")

"""`hmc admin` against a real server on a real socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Hmc
from tests.command import done, refused
from tests.guards.test_help_is_light import probe
from tests.serving.certificates import make_certificate, make_client_certificate
from tests.serving.fakes import FakeFactory, eventually, write_bundle

from hmc.cli.common.commands import TRY_AGAIN
from hmc.engine.requests.work import BatchLoad, LevelWork
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings


def loaded(server: BackgroundServer) -> list[str]:
    with Client(server.address) as client:
        return [level.name for level in client.levels().levels if level.loaded]


def test_unload_and_load(hmc: Hmc, server: BackgroundServer) -> None:
    ran = hmc("admin", "unload", "h6", "--server", server.address)
    assert (ran.exit_code, ran.stdout) == (0, "h6 is unloaded.\n")
    assert loaded(server) == ["full", "h12"]
    ran = hmc("admin", "load", "h6", "--server", server.address)
    assert (ran.exit_code, ran.stdout) == (0, "h6 is loaded and serves.\n")
    assert loaded(server) == ["full", "h12", "h6"]


def test_a_level_as_json(hmc: Hmc, server: BackgroundServer) -> None:
    reported = json.loads(hmc("admin", "unload", "h12", "--server", server.address, "--json").stdout)
    assert (reported["name"], reported["loaded"], reported["memory"]) == ("h12", False, None)
    reported = json.loads(hmc("admin", "load", "h12", "--server", server.address, "--json").stdout)
    assert (reported["name"], reported["loaded"], reported["memory"]) == ("h12", True, {"own": 30, "shared": 100})
    listed = json.loads(hmc("levels", "--server", server.address, "--json").stdout)
    assert reported in listed["levels"]


def test_status(hmc: Hmc, server: BackgroundServer, factory: FakeFactory) -> None:
    batches = BatchLoad(0, 3, 12, interactive=True), BatchLoad(1, 2, 2, interactive=False)
    factory["h12"].work = LevelWork(workers=2, max_rows=128, waiting=5, queue_size=64, batches=batches)
    lines = hmc("admin", "status", "--server", server.address).stdout.splitlines()
    assert [line.split(":")[0] for line in lines if not line.startswith(" ")] == [
        "en-de/full",
        "en-de/h12",
        "en-de/h6",
        "process",
    ]
    at = next(n for n, line in enumerate(lines) if line.startswith("en-de/h12"))
    assert lines[at] == "en-de/h12: 5 of 64 sentences in the queue, 14 of 128 rows at work, 0.0 MiB of weights"
    assert lines[at + 1 : at + 3] == [
        "  worker 0: 3 interactive sentences in 12 rows",
        "  worker 1: 2 other sentences in 2 rows",
    ]
    found = json.loads(hmc("admin", "status", "--server", server.address, "--json").stdout)
    assert found["levels"][1]["batches"][0] == {"worker": 0, "sentences": 3, "rows": 12, "interactive": True}
    refused = hmc("admin", "status", "--server", server.address, "--model", "no")
    assert (refused.exit_code, "unknown model 'no'" in refused.stderr) == (2, True)


def test_reload(hmc: Hmc, server: BackgroundServer, fake_bundle: Path, tmp_path: Path) -> None:
    other = write_bundle(tmp_path / "other", version="fedcba9876543210")
    ran = hmc("admin", "reload", other, "--server", server.address)
    assert (ran.exit_code, ran.stdout) == (0, "Bundle fedcba9876543210 serves.\n")
    write_bundle(other, version="0011223344556677")  # reload without a path reads the same one again
    ran = hmc("admin", "reload", "--server", server.address, "--json")
    assert json.loads(ran.stdout) == {"bundle_version": "0011223344556677"}
    assert hmc("admin", "reload", fake_bundle, "--server", server.address).exit_code == 0
    with Client(server.address) as client:
        assert client.translate(["a"]).bundle_version == "0123456789abcdef"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["load", "h7"], "hmc: unknown level 'h7'; this bundle has: full, h12, h6"),
        (["unload", "h7"], "hmc: unknown level 'h7'; this bundle has: full, h12, h6"),
        (["unload", "full"], "hmc: level 'full' is the default level and stays loaded; make another"),
        (["reload", "/nowhere"], "hmc: bundle /nowhere is not below /"),
        (["reload", "bundle"], "hmc: bundle 'bundle': give an absolute path; it is looked up on the server's machine"),
        (["reload", ""], "hmc: bundle '': give an absolute path"),
    ],
)
def test_what_cannot_be_done(hmc: Hmc, server: BackgroundServer, arguments: list[str], said: str) -> None:
    ran = hmc("admin", *arguments, "--server", server.address)
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert ran.stderr.startswith(said)
    assert loaded(server) == ["full", "h12", "h6"]


def test_a_folder_that_is_no_bundle(hmc: Hmc, server: BackgroundServer, tmp_path: Path) -> None:
    ran = hmc("admin", "reload", tmp_path / "nowhere", "--server", server.address)
    assert ran.stderr.startswith(
        f"hmc: bundle {tmp_path}/nowhere cannot be used:\n  - {tmp_path}/nowhere does not exist\n"
    )


def test_a_level_in_use_is_freed_when_its_requests_are_answered(
    hmc: Hmc, server: BackgroundServer, factory: FakeFactory
) -> None:
    held = factory["h6"]
    with Client(server.address) as client:
        answers = client.translate_stream(iter(["first", "hold"]), "h6")
        assert next(answers).result().text == "h6:first"
        eventually(lambda: held.pending == 1)
        ran = hmc("admin", "unload", "h6", "--server", server.address, "--timeout", 0.3)
        assert (ran.exit_code, ran.stdout) == (TRY_AGAIN, "")
        assert f"{server.address} is not done after 0.3 s and continues: it finishes running requests" in ran.stderr
        assert not held.closed
        held.release.set()
        assert next(answers).result().text == "h6:hold"
    eventually(lambda: held.closed == "drained")
    assert loaded(server) == ["full", "h12"]


@pytest.mark.parametrize("arguments", [["load", "h6"], ["unload", "h6"], ["reload"]])
def test_no_server(hmc: Hmc, arguments: list[str]) -> None:
    with socket.socket() as probed:
        probed.bind(("127.0.0.1", 0))
        ran = hmc("admin", *arguments, "--server", f"127.0.0.1:{probed.getsockname()[1]}")
    assert ran.exit_code == TRY_AGAIN
    assert "is `hmc serve` running there" in ran.stderr
    refused(hmc("admin", *arguments), "Missing option")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return make_certificate(tmp_path)[0]


@pytest.fixture
def guarded_server(fake_bundle: Path, factory: FakeFactory, certificate: Path) -> Iterator[BackgroundServer]:
    """With TLS and a token."""
    settings = ServerSettings(port=0, token="s3cret", tls_cert=certificate, tls_key=certificate.with_suffix(".key"))
    with BackgroundServer(fake_bundle, settings, factory) as running:
        yield running


CALLS = (["admin", "unload", "h6"], ["admin", "load", "h6"], ["admin", "reload"], ["levels"], ["translate", "a"])


@pytest.mark.parametrize("call", CALLS)
def test_token_and_tls(hmc: Hmc, guarded_server: BackgroundServer, certificate: Path, call: list[str]) -> None:
    call = [*call, "--server", guarded_server.address, "--tls-ca", str(certificate)]
    hint = "; give this server's token in HMC_TOKEN or with --token\n"
    for token, said in (
        ([], "this server requires a token: "),
        (["--token", "wrong"], "the token in `authorization` is not this server's"),
    ):
        ran = hmc(*call, *token)
        assert (ran.exit_code, ran.stdout) == (2, "")
        assert ran.stderr.startswith(f"hmc: {said}")
        assert ran.stderr.endswith(hint)
    done(hmc(*call, "--token", "s3cret"))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("name", "said"), [("nowhere.pem", "cannot read"), ("server.key", "holds no certificates in PEM")]
)
def test_authorities_of_no_use(
    hmc: Hmc, server: BackgroundServer, certificate: Path, call: list[str], name: str, said: str
) -> None:
    file = certificate.with_name(name)
    ran = hmc(*call, "--server", server.address, "--tls-ca", file)
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert ran.stderr.startswith("hmc: TLS: ")
    assert said in ran.stderr
    assert str(file) in ran.stderr


def test_client_certificates(hmc: Hmc, fake_bundle: Path, factory: FakeFactory, tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    mine, my_key = make_client_certificate(tmp_path, "alice")
    settings = ServerSettings(port=0, tls_cert=cert, tls_key=key, tls_client_ca=tmp_path / "ca.pem")
    with BackgroundServer(fake_bundle, settings, factory) as running:
        for call in CALLS:
            words = [*call, "--server", running.address, "--tls-ca", cert]
            assert hmc(*words, "--tls-cert", mine, "--tls-key", my_key).exit_code == 0
            said = hmc(*words, "--tls-cert", mine).stderr
            assert said == "hmc: a client certificate needs both --tls-cert and --tls-key\n"


def test_a_certificate_of_another_name(hmc: Hmc, fake_bundle: Path, factory: FakeFactory, tmp_path: Path) -> None:
    """As that of a Service has it, which a probe in the pod asks at localhost."""
    cert, key = make_certificate(tmp_path)
    with BackgroundServer(fake_bundle, ServerSettings(port=0, tls_cert=cert, tls_key=key), factory) as running:
        address = f"localhost:{running.address.rpartition(':')[2]}"
        for call in (["health"], ["levels"]):
            words = [*call, "--server", address, "--tls-ca", cert]
            assert hmc(*words, "--timeout", "1").exit_code != 0
            done(hmc(*words, "--tls-name", "127.0.0.1"))
        refused(hmc("levels", "--server", address, "--tls-name", "a"), "needs TLS")


def test_help_is_light() -> None:
    printed, heavy = probe("admin", "--help")
    assert heavy == []
    for command in ("load", "unload", "reload"):
        assert command in printed
    assert probe("admin", "reload", "--help")[1] == []
    assert "admin" in probe("--help")[0]

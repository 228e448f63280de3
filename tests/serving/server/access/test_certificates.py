"""Mutual TLS, and certificates that are replaced while a real server runs."""

from __future__ import annotations

import shutil
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.serving.certificates import make_certificate, make_client_certificate
from tests.serving.fakes import GUARD_S, FakeFactory, eventually

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import PermissionDeniedError, UnauthenticatedError, UnavailableError
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of certificates: two servers', and clients' of two authorities. Read-only."""
    folder = tmp_path_factory.mktemp("pki")
    for name in ("server", "renewed"):
        make_certificate(folder, name, "ec")
    make_client_certificate(folder, "alice", "spiffe://example.org/alice")
    make_client_certificate(folder, "bob")
    (folder / "other").mkdir()
    make_client_certificate(folder / "other", "mallory")
    return folder


def pair(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.pem", folder / f"{name}.key"


def test_only_clients_with_a_certificate_connect(bundle: Path, factory: FakeFactory, pki: Path) -> None:
    cert, key = pair(pki, "server")
    settings = ServerSettings(port=0, tls_cert=cert, tls_key=key, tls_client_ca=pki / "ca.pem")
    with BackgroundServer(bundle, settings, factory) as server:
        for name in ("alice", "bob"):
            with Client(server.address, tls_ca=cert, tls_pair=pair(pki, name)) as client:
                assert client.translate(["a"], timeout=20)[0].text == "full:a"
        with Client(server.address, tls_ca=cert) as none, pytest.raises(UnavailableError):
            none.translate(["a"], timeout=20)
        stranger = pair(pki / "other", "mallory")
        with Client(server.address, tls_ca=cert, tls_pair=stranger) as other, pytest.raises(UnavailableError):
            other.translate(["a"], timeout=20)


def test_names_in_certificates_have_scopes(bundle: Path, factory: FakeFactory, pki: Path, tmp_path: Path) -> None:
    cert, key = pair(pki, "server")
    (tmp_path / "tokens.toml").write_text(
        'tokens.alice = { certificate = "spiffe://example.org/alice", scopes = ["translate"] }\n'
        'tokens.robert = { certificate = "bob", scopes = ["admin"] }\n'
    )
    settings = ServerSettings(
        port=0, tls_cert=cert, tls_key=key, tls_client_ca=pki / "ca.pem", tokens=tmp_path / "tokens.toml"
    )
    make_client_certificate(pki, "carol")
    with BackgroundServer(bundle, settings, factory) as server:
        with Client(server.address, tls_ca=cert, tls_pair=pair(pki, "alice")) as alice:
            assert alice.translate(["a"])[0].text == "full:a"
            with pytest.raises(PermissionDeniedError, match="'alice' may not do this: it needs the scope admin"):
                alice.load_level("h6")
        with Client(server.address, tls_ca=cert, tls_pair=pair(pki, "bob")) as bob:
            assert bob.load_level("h6").loaded
        carol = Client(server.address, tls_ca=cert, tls_pair=pair(pki, "carol"))
        with carol, pytest.raises(UnauthenticatedError, match="requires a token"):
            carol.translate(["a"])


def put(folder: Path, source: tuple[Path, Path]) -> None:
    """Replaces certificate and key of a server, one after the other, each in one step."""
    for file, name in zip(source, ("cert.pem", "key.pem"), strict=True):
        shutil.copy(file, folder / "new")
        Path(folder / "new").replace(folder / name)


def served(address: str) -> str:
    host, port = address.rsplit(":", 1)
    return ssl.get_server_certificate((host, int(port)), timeout=20).strip()


def test_a_certificate_is_renewed_under_load(
    bundle: Path, factory: FakeFactory, pki: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """New connections are made all the time. None fails, and the new certificate arrives; a bad one does not."""
    put(tmp_path, pair(pki, "server"))
    both = tmp_path / "both.pem"
    both.write_text((pki / "server.pem").read_text() + (pki / "renewed.pem").read_text())
    settings = ServerSettings(port=0, tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem")
    stop = threading.Event()
    with BackgroundServer(bundle, settings, factory) as server:
        address = server.address

        def connect() -> int:
            connected = 0
            while not stop.is_set():
                with Client(address, tls_ca=both) as client:
                    assert client.translate(["a"], timeout=30)[0].text == "full:a"
                connected += 1
            return connected

        def stay() -> int:
            calls = 0
            with Client(address, tls_ca=both) as client:
                while not stop.is_set():
                    assert client.translate(["a"], timeout=30)[0].text == "full:a"
                    calls += 1
            return calls

        with ThreadPoolExecutor(3) as pool:
            loads = [pool.submit(connect), pool.submit(connect), pool.submit(stay)]
            try:
                old, new = ((pki / f"{name}.pem").read_text().strip() for name in ("server", "renewed"))
                assert served(address) == old
                shutil.copy(pki / "renewed.key", tmp_path / "key.pem")  # the certificate comes later
                eventually(lambda: "does not belong to the first certificate" in caplog.text, 30)
                assert served(address) == old
                put(tmp_path, pair(pki, "renewed"))
                eventually(lambda: served(address) == new, 30)
                (tmp_path / "cert.pem").write_text("nothing")
                eventually(lambda: "holds no certificates in PEM" in caplog.text, 30)
                assert served(address) == new
            finally:
                stop.set()
            assert all(done.result(GUARD_S) for done in loads)


def test_authorities_of_clients_are_replaced(bundle: Path, factory: FakeFactory, pki: Path, tmp_path: Path) -> None:
    cert, key = pair(pki, "server")
    authorities = tmp_path / "ca.pem"
    shutil.copy(pki / "other" / "ca.pem", authorities)
    settings = ServerSettings(port=0, tls_cert=cert, tls_key=key, tls_client_ca=authorities)
    with BackgroundServer(bundle, settings, factory) as server:

        def enters(name: tuple[Path, Path]) -> bool:
            with Client(server.address, tls_ca=cert, tls_pair=name) as client:
                try:
                    return bool(client.translate(["a"], timeout=30))
                except UnavailableError:
                    return False

        assert enters(pair(pki / "other", "mallory"))
        assert not enters(pair(pki, "alice"))
        shutil.copy(pki / "ca.pem", authorities)
        eventually(lambda: enters(pair(pki, "alice")), 30)
        assert not enters(pair(pki / "other", "mallory"))


def test_settings_of_no_use(pki: Path) -> None:
    cert, key = pair(pki, "server")
    with pytest.raises(InvalidRequestError, match="client certificates need TLS"):
        ServerSettings(tls_client_ca=pki / "ca.pem")
    with pytest.raises(InvalidRequestError, match="holds no certificates in PEM"):
        ServerSettings(tls_cert=cert, tls_key=key, tls_client_ca=key)
    with pytest.raises(InvalidRequestError, match="a client certificate needs TLS: give tls_ca too"):
        Client("127.0.0.1:1", tls_pair=pair(pki, "alice"))
    with pytest.raises(InvalidRequestError, match="does not belong to the first certificate"):
        Client("127.0.0.1:1", tls_ca=cert, tls_pair=(pki / "alice.pem", pki / "bob.key"))

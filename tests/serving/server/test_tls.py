"""TLS on a real socket, and errors for files that cannot be used for it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from tests.serving.certificates import make_certificate, openssl
from tests.serving.fakes import GUARD_S, FakeFactory

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import UnavailableError
from hmc.serving.client import Client
from hmc.serving.server.access.certificates import Certificates
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings


@pytest.mark.parametrize("kind", ["rsa:2048", "rsa:1024", "ec"])
def test_tls(bundle: Path, factory: FakeFactory, tmp_path: Path, kind: str) -> None:
    cert, key = make_certificate(tmp_path, kind=kind)
    with BackgroundServer(bundle, ServerSettings(port=0, tls_cert=cert, tls_key=key), factory) as running:
        with Client(running.address, tls_ca=cert) as client:
            client.wait_ready(GUARD_S)
            assert client.translate(["a"])[0].text == "full:a"
        with Client(running.address) as plain, pytest.raises(UnavailableError):
            plain.translate(["a"], timeout=GUARD_S)


def test_comments_in_any_language_and_a_key_beside_its_certificate(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes("# Zertifikat für uns\n".encode() + cert.read_bytes() + key.read_bytes())
    Certificates(both, both)
    Client("127.0.0.1:1", tls_ca=both).close()


NO_CERTIFICATES = "holds no certificates in PEM"
NO_KEY = "holds no private key in PEM"
KEY_MISMATCH = "does not belong to the first certificate in"


@pytest.mark.parametrize(
    ("cert", "key", "named", "message"),
    [
        ("nowhere", "server.key", "nowhere", "cannot read"),
        ("server.pem", "nowhere", "nowhere", "cannot read"),
        (".", "server.key", "", "cannot read"),
        ("server.pem", ".", "", "cannot read"),
        ("empty", "server.key", "empty", "is empty; give a PEM file"),
        ("server.pem", "empty", "empty", "is empty; give a PEM file"),
        ("text", "server.key", "text", NO_CERTIFICATES),
        ("server.pem", "text", "text", NO_KEY),
        ("server.der", "server.key", "server.der", NO_CERTIFICATES),
        ("server.key", "server.pem", "server.key", NO_CERTIFICATES),
        ("server.pem", "server.pem", "server.pem", NO_KEY),
        ("cut.pem", "server.key", "cut.pem", NO_CERTIFICATES),
        ("chain-cut.pem", "server.key", "chain-cut.pem", NO_CERTIFICATES),
        ("server.pem", "other.key", "other.key", KEY_MISMATCH),
        ("server.pem", "ec.key", "ec.key", KEY_MISMATCH),
        ("ec.pem", "server.key", "server.key", KEY_MISMATCH),
        ("chain-wrong-order.pem", "server.key", "chain-wrong-order.pem", KEY_MISMATCH),
        ("server.pem", "encrypted.key", "encrypted.key", "is encrypted; give one without a passphrase"),
    ],
)
def test_unusable_files_are_named(bad_files: Path, cert: str, key: str, named: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ServerSettings(tls_cert=bad_files / cert, tls_key=bad_files / key)
    assert message in str(caught.value)
    assert str(bad_files / named) in str(caught.value)


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of unusable files and of one usable pair. Read-only."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = make_certificate(folder)
    other, _ = make_certificate(folder, "other")
    make_certificate(folder, "ec", "ec")
    openssl("pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out", folder / "encrypted.key")
    openssl("x509", "-in", cert, "-outform", "der", "-out", folder / "server.der")
    whole, second = cert.read_text(), other.read_text()
    for name, text in {
        "empty": "\n",
        "text": "no certificate, no key\n",
        "cut.pem": whole[: len(whole) // 2],
        "chain-cut.pem": whole + second[: len(second) // 2],
        "chain-wrong-order.pem": second + whole,
    }.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere", "cannot read"), ("empty", "is empty"), ("text", NO_CERTIFICATES), ("server.key", NO_CERTIFICATES)],
)
def test_unusable_authorities_are_named(bad_files: Path, name: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Client("127.0.0.1:1", tls_ca=bad_files / name)
    assert message in str(caught.value)
    assert str(bad_files / name) in str(caught.value)


@pytest.mark.parametrize("right", [True, False])
def test_a_key_from_a_pipe(bundle: Path, factory: FakeFactory, bad_files: Path, tmp_path: Path, right: bool) -> None:
    pipe, key = tmp_path / "pipe", bad_files / ("server.key" if right else "other.key")
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(key.read_bytes()))
    writer.start()
    running = BackgroundServer(bundle, ServerSettings(port=0, tls_cert=bad_files / "server.pem", tls_key=pipe), factory)
    if right:
        with running, Client(running.address, tls_ca=bad_files / "server.pem") as client:
            assert client.translate(["a"], timeout=GUARD_S)[0].text == "full:a"
    else:
        with pytest.raises(InvalidRequestError, match=r"cannot serve TLS with .*server\.pem and .*pipe: "):
            running.__enter__()
    writer.join()


@pytest.mark.parametrize("token", ["ü", "a\n", " "])
def test_a_token_that_cannot_be_sent(token: str) -> None:
    with pytest.raises(InvalidRequestError, match="the token must be printable ASCII"):
        Client("127.0.0.1:1", token=token)

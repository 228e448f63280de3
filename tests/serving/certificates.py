"""Certificates for a server on this machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def openssl(*arguments: str | Path) -> None:
    """Runs OpenSSL. Skips the test if it is not installed."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes certificates, is not installed")
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def make_certificate(folder: Path, name: str = "server", kind: str = "rsa:2048") -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key without a passphrase."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    curve = ["-pkeyopt", "ec_paramgen_curve:P-256"] if kind == "ec" else []
    made = ["req", "-x509", "-newkey", kind, *curve, "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    openssl(*made, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert)
    return cert, key

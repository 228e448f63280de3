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


def make_client_certificate(folder: Path, name: str, spiffe: str = "") -> tuple[Path, Path]:
    """A client certificate with this common name and SPIFFE ID, and its key. An authority `ca.pem` in the folder, made
    if it is not there, has signed it."""
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    curve: list[str | Path] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    if not ca.exists():
        openssl("req", "-x509", *curve, "-days", "2", "-subj", "/CN=authority", "-keyout", ca_key, "-out", ca)
    cert, key, request = (folder / f"{name}.{ending}" for ending in ("pem", "key", "csr"))
    names: list[str | Path] = ["-addext", f"subjectAltName=URI:{spiffe}"] if spiffe else []
    openssl("req", *curve, "-subj", f"/CN={name}", *names, "-keyout", key, "-out", request)
    signed: list[str | Path] = [
        "x509",
        "-req",
        "-in",
        request,
        "-CA",
        ca,
        "-CAkey",
        ca_key,
        "-days",
        "2",
        "-copy_extensions",
        "copy",
    ]
    openssl(*signed, "-out", cert)
    return cert, key


def make_certificate(folder: Path, name: str = "server", kind: str = "rsa:2048") -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key without a passphrase."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    curve = ["-pkeyopt", "ec_paramgen_curve:P-256"] if kind == "ec" else []
    made = ["req", "-x509", "-newkey", kind, *curve, "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    openssl(*made, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert)
    return cert, key

"""Checks PEM files before gRPC reads them. gRPC itself only reports that it cannot listen or connect."""

from __future__ import annotations

import ssl
from pathlib import Path

from hmc.artifact.errors import InvalidRequestError

KEY_MISMATCH = {"KEY_VALUES_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}
"""OpenSSL's reasons if a private key does not belong to the certificate: another key, or a key of another type."""


def check_pair(cert: Path, key: Path) -> None:
    """Raises InvalidRequestError unless gRPC can serve with this certificate chain and key. The error names the file.

    Pipes are not checked: they can be read only once, and gRPC has to read them.
    """
    if _is_pipe(cert) or _is_pipe(key):
        return
    _check_certificates(cert, read_pem(cert))
    read_pem(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # short keys are accepted, because gRPC serves with them

    def refuse() -> str:
        raise InvalidRequestError(
            f"TLS: the key {key} is encrypted; give one without a passphrase, for example `openssl pkey -in {key} "
            "-out FILE`"
        )

    try:
        context.load_cert_chain(cert, key, refuse)
    except ssl.SSLError as error:
        if error.reason in KEY_MISMATCH:
            raise InvalidRequestError(
                f"TLS: the key {key} does not belong to the first certificate in {cert}; give the key that this "
                "certificate was made for, and the chain with the server's own certificate first"
            ) from error
        raise InvalidRequestError(
            f"TLS: {key} holds no private key in PEM (`-----BEGIN PRIVATE KEY-----`), or is cut off; give the key "
            f"that the certificate in {cert} was made for"
        ) from error


def read_authorities(path: Path) -> bytes:
    """Reads a PEM file of certificates. Raises InvalidRequestError if it has none, or a broken one."""
    content = read_pem(path)
    _check_certificates(path, content)
    return content


def read_pair(pair: tuple[Path, Path] | None) -> tuple[bytes | None, bytes | None]:
    """The key and the certificate chain of a client, in the order of gRPC's arguments. Without files both are None.

    pair: the files of the chain and of the key. Raises InvalidRequestError if they cannot be used.
    """
    if pair is None:
        return None, None
    cert, key = pair
    check_pair(cert, key)
    return read_pem(key), read_pem(cert)


def read_pem(path: Path) -> bytes:
    """Reads a PEM file. Raises InvalidRequestError if it cannot be read or is empty."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(
            f"TLS: cannot read {path}: {error.strerror}; check the path and its permissions"
        ) from error
    if not content.strip():
        raise InvalidRequestError(f"TLS: {path} is empty; give a PEM file")
    return content


def _is_pipe(path: Path) -> bool:
    try:
        return path.is_fifo()
    except OSError:  # reading it later reports the reason
        return False


def _check_certificates(path: Path, content: bytes) -> None:
    text = content.decode("ascii", errors="ignore")  # comments may have other characters; PEM is ASCII
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidRequestError(
            f"TLS: {path} holds no certificates in PEM (`-----BEGIN CERTIFICATE-----`), or is cut off; give a file of "
            "certificates, or convert it with `openssl x509`"
        ) from error

"""Files that are read again when they change; the certificates of a server among them."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import grpc

from hmc.artifact.errors import HmcError
from hmc.serving.wire.tls import check_pair, read_authorities, read_pem

T = TypeVar("T")


def ignore() -> None:
    """Does nothing."""


class Watched(Generic[T]):
    """What `read` makes of some files. Thread-safe.

    Contents are compared, and not times: a file system's clock may be too coarse to tell two changes apart. If the
    changed files cannot be used, for example because only one file of a pair has been replaced so far, the old value
    stays in force, and the log says why, once for each such state.
    """

    def __init__(
        self, what: str, files: Sequence[Path], read: Callable[[], T], rejected: Callable[[], object] = ignore
    ) -> None:
        """what: names the files in the log. read: reads and checks them. rejected: called for each new state of the
        files that cannot be used. Raises what `read` raises."""
        self._what = what
        self._files = files
        self._read = read
        self._rejected = rejected
        self._lock = threading.Lock()
        self._seen = self._contents()
        self.value = read()

    def refresh(self) -> bool:
        """Reads the files if they have changed. Returns whether there is a new value."""
        with self._lock:
            contents = self._contents()
            if contents == self._seen:
                return False
            try:
                value = self._read()
            except HmcError as error:
                self._seen = contents
                log.error("%s changed and cannot be used; what was read before stays in force: %s", self._what, error)
                self._rejected()
                return False
            if self._contents() != contents:
                return False  # a file was replaced just now: the next refresh reads again
            self._seen = contents
            self.value = value
        log.info("%s changed and was read again", self._what)
        return True

    def _contents(self) -> list[bytes]:
        return [_digest(file) for file in self._files]


def _digest(file: Path) -> bytes:
    try:
        return hashlib.sha256(file.read_bytes()).digest()
    except OSError as error:  # `read` reports it
        return str(error.errno).encode()


log = logging.getLogger(__name__)


class _Content(NamedTuple):
    """What the files hold."""

    pair: tuple[bytes, bytes]
    configuration: grpc.ServerCertificateConfiguration


class Certificates:
    """Makes gRPC's credentials from PEM files.

    gRPC asks before each handshake, on a thread of its own, whether there is a new certificate. Connections that are
    open keep the one that they were made with.
    """

    def __init__(
        self, cert: Path, key: Path, client_ca: Path | None = None, rejected: Callable[[], object] = ignore
    ) -> None:
        """client_ca: authorities of client certificates; each connection must then show one of them. rejected: see
        `Watched`.

        Raises InvalidRequestError if a file cannot be used. Files that are pipes are read once and never again.
        """
        self._cert = cert
        self._key = key
        self._client_ca = client_ca
        self.files = f"{cert} and {key}"
        """The names of certificate and key, for errors."""
        files = [file for file in (cert, key, client_ca) if file is not None]
        pipes = any(file.is_fifo() for file in files)
        self._watched = None if pipes else Watched("the TLS certificate", files, self._read, rejected)
        self._first = self._read() if self._watched is None else self._watched.value

    def _read(self) -> _Content:
        check_pair(self._cert, self._key)
        roots = None if self._client_ca is None else read_authorities(self._client_ca)
        pair = read_pem(self._key), read_pem(self._cert)
        return _Content(pair, grpc.ssl_server_certificate_configuration([pair], root_certificates=roots))

    @property
    def pair(self) -> tuple[bytes, bytes]:
        """The key and the certificate chain in force, in PEM."""
        return (self._first if self._watched is None else self._watched.value).pair

    def refresh(self) -> None:
        """Reads the files again if they have changed, so that bad ones are logged before the next connection."""
        if self._watched is not None:
            self._watched.refresh()

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials for one address, which follow the files."""
        used = self._first

        def changed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal used
            try:
                self.refresh()
            except Exception:  # gRPC would end the connection
                log.exception("the TLS certificate cannot be read again; the old one stays in force")
            if self._watched is None or self._watched.value is used:
                return None
            used = self._watched.value
            return used.configuration

        # The stubs of grpc leave out that None keeps the certificate.
        return grpc.dynamic_ssl_server_credentials(used.configuration, changed, self._client_ca is not None)  # type: ignore[arg-type]

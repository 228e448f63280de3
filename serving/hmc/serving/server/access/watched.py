"""Values read from files, which are read again when the files change."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from hmc.artifact.errors import HmcError

T = TypeVar("T")
log = logging.getLogger(__name__)


class Watched(Generic[T]):
    """What `read` makes of some files. Thread-safe.

    Contents are compared, and not times: a file system's clock may be too coarse to tell two changes apart. If the
    changed files cannot be used, for example because only one file of a pair has been replaced so far, the old value
    stays in force, and the log says why, once for each such state.
    """

    def __init__(self, what: str, files: Sequence[Path], read: Callable[[], T]) -> None:
        """what: names the files in the log. read: reads and checks them. Raises what `read` raises."""
        self._what, self._files, self._read = what, files, read
        self._lock = threading.Lock()
        self._seen = self._contents()
        self.value = read()

    def refresh(self) -> bool:
        """Reads the files if they have changed. Returns whether there is a new value."""
        with self._lock:
            found = self._contents()
            if found == self._seen:
                return False
            try:
                value = self._read()
            except HmcError as error:
                self._seen = found
                log.error("%s changed and cannot be used; what was read before stays in force: %s", self._what, error)
                return False
            if self._contents() != found:
                return False  # a file was replaced just now: the next refresh reads again
            self._seen, self.value = found, value
        log.info("%s changed and was read again", self._what)
        return True

    def _contents(self) -> list[bytes]:
        return [_digest(file) for file in self._files]


def _digest(file: Path) -> bytes:
    try:
        return hashlib.sha256(file.read_bytes()).digest()
    except OSError as error:  # `read` reports it
        return str(error.errno).encode()

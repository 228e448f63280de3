"""Weights in the form that this machine's kernels want, kept in files that sessions map into memory.

A kernel packs its weights when a session is opened, into memory of its own: a tensor that four levels have in common is
packed and held four times. ONNX Runtime can save packed weights beside a graph and map them from there. Here every
tensor, raw and packed, becomes a file named by the digest of its content, so that equal tensors of any level, bundle or
process are one file, and one copy in memory. The name also has a checksum, which is quick to compare with the content.

The packed form belongs to a processor and an ONNX Runtime; so this is a cache, never part of a bundle. All of it may be
deleted at any time, also while it is in use.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hmc.artifact.errors import InvalidRequestError
from hmc.serving.external_data import GraphFile, Span, StoredTensor
from hmc.serving.machine import machine_digest

log = logging.getLogger(__name__)

ENVIRONMENT = "HMC_CACHE"
GRAPHS, WEIGHTS = "graphs", "weights"
DIGITS = 32
"""Hexadecimal digits of a sha256 that names are made of."""
CHUNK_BYTES = 2**20
KEEP_DAYS = 90
"""A graph that nobody has opened for so long is removed when another one is packed."""
UNFINISHED = ".new-"
"""How folders are called that hold a graph while it is packed."""

Pack = Callable[[Path], None]
"""Saves a graph to this path with packed weights; they go to files in the same folder."""

_verified: set[tuple[str, int, int, int]] = set()
"""Weight files that were whole when this process read them: path, inode, time, size."""


@dataclass(frozen=True)
class PackedGraph:
    """A graph whose weights are packed."""

    content: bytes
    folder: Path
    """What the graph's external data is relative to."""
    weights: dict[str, int]
    """Weight file → bytes of it that a session holds in memory."""


def cache_folder(where: str | Path = "auto") -> Path | None:
    """`none`: None. A folder: itself. `auto`: what HMC_CACHE says, or else the platform's folder for caches.

    Raises InvalidRequestError for a blank, and where there is no such folder because the user has no home.
    """
    if where == "auto":
        where = os.environ.get(ENVIRONMENT) or _platform_folder()
    if not str(where).strip():
        raise InvalidRequestError("cache: name a folder, or say auto or none")
    return None if str(where) == "none" else Path(where).absolute()


def _platform_folder() -> Path | str:
    try:
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "hmc"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hmc"
    except RuntimeError as error:
        raise InvalidRequestError(
            f"no folder to keep packed weights in ({error}): set {ENVIRONMENT} to a folder, or to `none`"
        ) from error


class PackedWeights:
    """The cache of one machine. Any number of threads and processes may use it at once: files appear whole or not at
    all, and are replaced, never changed."""

    def __init__(self, folder: Path) -> None:
        """folder: as from `cache_folder`; machines have folders of their own in it. Nothing is created yet."""
        self.folder = folder / "packed" / machine_digest()[:16]

    def graph(self, source: bytes, pack: Pack) -> PackedGraph:
        """The packed form of the graph `source`; packed now if it is not here, or is not what was written.

        Raises OSError where nothing can be written, and what `pack` raises.
        """
        digest = hashlib.sha256(source).hexdigest()[:DIGITS]
        found = self._find(digest)
        if found is None:
            log.info("packing weights for this machine into %s", self.folder)
            self._pack(digest, pack)
            found = self._find(digest)
        if found is None:
            raise OSError(f"{self.folder}: what was written cannot be read back")
        return found

    # -- reading -------------------------------------------------------------------------------------------------

    def _find(self, digest: str) -> PackedGraph | None:
        for file in sorted((self.folder / GRAPHS).glob(f"{digest}-*.onnx")):
            try:
                found = self._read(file)
                _touch(file)
                return found
            except (OSError, ValueError) as problem:
                log.warning("packed weights are damaged and packed again: %s", problem)
                file.unlink(missing_ok=True)
        return None

    def _read(self, file: Path) -> PackedGraph:
        """Raises ValueError, or OSError, for a graph that is not what was written, or whose weights are not."""
        content = file.read_bytes()
        if not file.stem.endswith(f"-{hashlib.sha256(content).hexdigest()[:DIGITS]}"):
            raise ValueError(f"{file} is not what was written")
        weights: dict[str, int] = {}
        for tensor in GraphFile(content).stored():
            _verify(self.folder / tensor.location)
            weights[tensor.location] = max(tensor.held_bytes, weights.get(tensor.location, 0))
        return PackedGraph(content, self.folder, weights)

    # -- writing -------------------------------------------------------------------------------------------------

    def _pack(self, digest: str, pack: Pack) -> None:
        for name in (GRAPHS, WEIGHTS):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        sweep(self.folder)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=self.folder) as made:
            path = Path(made) / "graph.onnx"
            pack(path)
            graph = GraphFile(path.read_bytes())
            graph.move({tensor.name: self._store(Path(made), tensor) for tensor in graph.stored()})
        content = graph.content()
        own = hashlib.sha256(content).hexdigest()[:DIGITS]
        _write(self.folder / GRAPHS / f"{digest}-{own}.onnx", content)

    def _store(self, made: Path, tensor: StoredTensor) -> StoredTensor:
        """Copies a tensor and its packed forms from where ONNX Runtime wrote them to a file of their own."""
        content, packed = bytearray(), {}
        with (made / tensor.location).open("rb") as file:

            def copy(span: Span) -> Span:
                content.extend(bytes(-len(content) % mmap.ALLOCATIONGRANULARITY))
                start = len(content)
                file.seek(span.offset)
                content.extend(file.read(span.length))
                if len(content) != start + span.length:
                    raise OSError(f"{made / tensor.location} was cut short")
                return Span(start, span.length)

            raw = copy(tensor.raw)
            for name, spans in tensor.packed.items():
                packed[name] = tuple(copy(span) for span in spans)
        location = f"{WEIGHTS}/{hashlib.sha256(content).hexdigest()[:DIGITS]}-{zlib.crc32(content):08x}.bin"
        path = self.folder / location
        _touch(path)
        try:
            _verify(path)  # kept if it is whole, so that whoever maps it already shares it
        except (OSError, ValueError):
            _write(path, content)
        return StoredTensor(tensor.name, location, raw, packed, tensor.uses)


def _verify(path: Path) -> None:
    """Raises ValueError, or OSError, for a weight file whose content does not have the checksum in its name."""
    status = path.stat()
    known = (str(path), status.st_ino, status.st_mtime_ns, status.st_size)
    if known in _verified:
        return
    checksum, chunk = 0, memoryview(bytearray(CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(chunk):
            checksum = zlib.crc32(chunk[:size], checksum)
    if f"{checksum:08x}" != path.stem.rpartition("-")[2]:
        raise ValueError(f"{path} is not what was written")
    _verified.add(known)


def _touch(path: Path) -> None:
    """Notes that a file is in use, if it is there and that may be noted."""
    with suppress(OSError):
        os.utime(path)


def sweep(folder: Path, now: float | None = None) -> None:
    """Removes graphs that nobody has opened for KEEP_DAYS, and what no graph has named for a day."""
    now = time.time() if now is None else now
    for graph in (folder / GRAPHS).iterdir():
        if _age_days(graph, now) > KEEP_DAYS:
            graph.unlink(missing_ok=True)
    named: set[str] = set()
    for graph in (folder / GRAPHS).glob("*.onnx"):
        with suppress(OSError, ValueError):  # what cannot be read names nothing
            named.update(tensor.location for tensor in GraphFile(graph.read_bytes()).stored())
    for weights in (folder / WEIGHTS).iterdir():
        if f"{WEIGHTS}/{weights.name}" not in named and _age_days(weights, now) > 1:
            weights.unlink(missing_ok=True)
    for unfinished in folder.glob(f"{UNFINISHED}*"):
        if _age_days(unfinished, now) > 1:
            shutil.rmtree(unfinished, ignore_errors=True)


def _age_days(path: Path, now: float) -> float:
    try:
        return (now - path.stat().st_mtime) / 86_400
    except FileNotFoundError:  # another process was quicker
        return 0


def _write(path: Path, content: bytes | bytearray) -> None:
    """Writes a file that appears whole or not at all."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.stem}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise

"""A cache of weights that are packed for this machine's processor, in files that sessions map into memory.

When ONNX Runtime opens a session, each kernel packs its weights into memory of its own. A tensor that four levels share
is then packed and held four times. ONNX Runtime can save packed weights with a graph, and map them from there. Here
each tensor, with its packed forms, becomes a file whose name is the digest of its content. Equal tensors of any level,
bundle or process are then one file, and one copy in memory. The name also contains a checksum: it is faster to compare
than the digest.

Packed forms depend on the processor and on the version of ONNX Runtime, so they are a cache and no part of a bundle.
All files may be deleted at any time, also while they are in use.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import shutil
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hmc.artifact.bundle.external_data import GraphFile, Span, StoredTensor
from hmc.artifact.errors import InvalidRequestError
from hmc.engine.runtime.processor import machine_digest

log = logging.getLogger(__name__)

CACHE_VARIABLE = "HMC_CACHE"
GRAPHS = "graphs"
WEIGHTS = "weights"
DIGITS = 32
"""Hexadecimal digits of a sha256 that file names contain."""
CHUNK_BYTES = 2**20
KEEP_DAYS = 90
"""A graph that was not opened for this many days is removed when another one is packed."""
UNFINISHED = ".new-"
"""Prefix of the folders in which graphs are packed."""

Pack = Callable[[Path], None]
"""Saves a graph with packed weights to the given path; the weights go to files in the same folder."""

_verified: set[tuple[str, int, int, int]] = set()
"""Weight files whose checksum this process has verified: path, inode, modification time, size."""
_said: set[Path] = set()
"""Folders of which this process has said that it packs weights into them."""
_saying = threading.Lock()


@dataclass(frozen=True)
class PackedGraph:
    """A graph with packed weights."""

    content: bytes
    folder: Path
    """The folder to which paths of its external data are relative."""
    weights: dict[str, int]
    """Weight file → bytes of it that a session of the graph holds in memory."""


def cache_folder(where: str | Path = "auto") -> Path | None:
    """The folder of the cache, or None for no cache.

    where: a folder; `none`; or `auto`, which means the environment variable HMC_CACHE, or the platform's folder for
    caches if that is not set. Raises InvalidRequestError for a blank, and if the platform's folder is needed but the
    user has no home directory.
    """
    if where == "auto":
        where = os.environ.get(CACHE_VARIABLE) or _platform_folder()
    if not str(where).strip():
        raise InvalidRequestError("cache: name a folder, or give auto or none")
    return None if str(where) == "none" else Path(where).absolute()


def _platform_folder() -> Path | str:
    try:
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "hmc"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hmc"
    except RuntimeError as error:
        raise InvalidRequestError(
            f"the folder for packed weights cannot be made ({error}): set {CACHE_VARIABLE} to a folder, or to `none`"
        ) from error


class PackedWeights:
    """The cache of one machine. Thread-safe, and safe for several processes: a file appears whole or not at all, and is
    replaced but never changed."""

    def __init__(self, folder: Path) -> None:
        """folder: see `cache_folder`. Each kind of machine has a folder of its own in it. Creates nothing yet."""
        self.folder = folder / "packed" / machine_digest()[:16]

    def graph(self, source: bytes, pack: Pack) -> PackedGraph:
        """The packed form of a graph. It is packed now if the cache does not have it, or if its files are damaged.

        source: content of the graph's file. Raises OSError if files cannot be read or written; existing files then stay
        as they are. Raises any error of `pack`.
        """
        digest = hashlib.sha256(source).hexdigest()[:DIGITS]
        packed = self._find(digest)
        if packed is None:
            self._say_once()
            self._pack(digest, pack)
            packed = self._find(digest)
        if packed is None:
            raise OSError(f"{self.folder}: the packed weights just written are gone or damaged")
        return packed

    def _say_once(self) -> None:
        """Logs that weights are packed: once for the folder, not for every graph."""
        with _saying:
            said = self.folder in _said
            _said.add(self.folder)
        if not said:
            log.info("packing weights for this machine into %s; later starts find them there", self.folder)

    # -- reading -------------------------------------------------------------------------------------------------

    def _find(self, digest: str) -> PackedGraph | None:
        for file in sorted((self.folder / GRAPHS).glob(f"{digest}-*.onnx")):
            try:
                packed = self._read(file)
            except FileNotFoundError:  # another process has removed it meanwhile
                continue
            except ValueError as problem:
                log.warning("packed weights are damaged and packed again: %s", problem)
                file.unlink(missing_ok=True)
                continue
            _touch(file)
            return packed
        return None

    def _read(self, file: Path) -> PackedGraph:
        """Raises ValueError if the graph or one of its weight files is damaged, and OSError if one cannot be read.

        Only damage justifies removing a file. An OSError, such as too many open files, says nothing about the content.
        """
        content = file.read_bytes()
        if not file.stem.endswith(f"-{hashlib.sha256(content).hexdigest()[:DIGITS]}"):
            raise ValueError(f"{file} does not match the digest in its name")
        weights: dict[str, int] = {}
        for tensor in GraphFile(content).stored():
            try:
                _verify(self.folder / tensor.location)
            except FileNotFoundError as error:
                raise ValueError(f"{self.folder / tensor.location} is missing") from error
            weights[tensor.location] = max(tensor.held_bytes, weights.get(tensor.location, 0))
        return PackedGraph(content, self.folder, weights)

    # -- writing -------------------------------------------------------------------------------------------------

    def _pack(self, digest: str, pack: Pack) -> None:
        for name in (GRAPHS, WEIGHTS):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        try:
            sweep(self.folder)
        except OSError as error:
            log.warning("unused packed weights in %s are not removed: %s", self.folder, error)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=self.folder) as folder:
            path = Path(folder) / "graph.onnx"
            pack(path)
            graph = GraphFile(path.read_bytes())
            graph.move({tensor.name: self._store(Path(folder), tensor) for tensor in graph.stored()})
        content = graph.content()
        own = hashlib.sha256(content).hexdigest()[:DIGITS]
        write_whole(self.folder / GRAPHS / f"{digest}-{own}.onnx", content)

    def _store(self, folder: Path, tensor: StoredTensor) -> StoredTensor:
        """Copies a tensor and its packed forms out of the files that ONNX Runtime wrote into a file of their own."""
        content = bytearray()
        packed = {}
        with (folder / tensor.location).open("rb") as file:

            def copy(span: Span) -> Span:
                content.extend(bytes(-len(content) % mmap.ALLOCATIONGRANULARITY))
                start = len(content)
                file.seek(span.offset)
                content.extend(file.read(span.length))
                if len(content) != start + span.length:
                    raise OSError(f"{folder / tensor.location} is shorter than ONNX Runtime says")
                return Span(start, span.length)

            raw = copy(tensor.raw)
            for name, spans in tensor.packed.items():
                packed[name] = tuple(copy(span) for span in spans)
        location = f"{WEIGHTS}/{hashlib.sha256(content).hexdigest()[:DIGITS]}-{zlib.crc32(content):08x}.bin"
        path = self.folder / location
        _touch(path)
        try:
            _verify(path)  # a whole file is kept: sessions that map it already share it with this one
        except (FileNotFoundError, ValueError):
            write_whole(path, content)
        return replace(tensor, location=location, raw=raw, packed=packed)


def _verify(path: Path) -> None:
    """Raises ValueError if a weight file does not match the checksum in its name, and OSError if it cannot be read."""
    status = path.stat()
    known = (str(path), status.st_ino, status.st_mtime_ns, status.st_size)
    if known in _verified:
        return
    checksum = 0
    chunk = memoryview(bytearray(CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(chunk):
            checksum = zlib.crc32(chunk[:size], checksum)
    if f"{checksum:08x}" != path.stem.rpartition("-")[2]:
        raise ValueError(f"{path} does not match the checksum in its name")
    _verified.add(known)


def _touch(path: Path) -> None:
    """Sets the modification time of a file to now, which keeps it from `sweep`.

    Does nothing if that is not possible.
    """
    with suppress(OSError):
        os.utime(path)


def sweep(folder: Path, now: float | None = None) -> None:
    """Removes graphs that were not opened for KEEP_DAYS, and weight files older than a day that no graph names.

    now: seconds since 1970. Raises OSError if a graph cannot be read: its weight files must stay.
    """
    now = time.time() if now is None else now
    for graph in (folder / GRAPHS).iterdir():
        if _age_days(graph, now) > KEEP_DAYS:
            graph.unlink(missing_ok=True)
    named: set[str] = set()
    for graph in (folder / GRAPHS).glob("*.onnx"):
        with suppress(FileNotFoundError, ValueError):  # a graph that is gone or damaged names no weight files
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
    except FileNotFoundError:  # another process has removed it
        return 0


def write_whole(path: Path, content: bytes | bytearray) -> None:
    """Writes a file so that it appears whole or not at all."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.stem}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise

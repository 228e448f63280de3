"""The folder of the output, on this machine or on a store. Every file in it is written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from hmc.pipelines.bulk.places import file_system, is_url, local_path
from hmc.pipelines.folders.taken import First, taken_folder
from hmc.pipelines.folders.whole import write_whole

FIRST = First("bulk.json", 1, "corpus, bundle, level or options")
"""The first file of the folder."""


class Store(Protocol):
    """A folder of files with names such as `translations/000000.txt`."""

    def taken(self, request: Mapping[str, Any]) -> Any:
        """A context: the folder is of this request, see `hmc.pipelines.folders.taken`."""
        ...

    def names(self, folder: str) -> set[str]:
        """The names of the files in a folder below; empty if there is none."""
        ...

    def read(self, name: str) -> bytes:
        """The bytes of a file that is there."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Writes a file whole or not at all."""
        ...


def open_store(place: str) -> Store:
    """The folder `place`. Raises InvalidRequestError for a URL of an unknown store."""
    return Remote(place) if is_url(place) else Local(local_path(place))


class Local:
    """A folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def taken(self, request: Mapping[str, Any]) -> Any:
        """See `Store`."""
        return taken_folder(self._folder, request, FIRST)

    def names(self, folder: str) -> set[str]:
        """See `Store`."""
        path = self._folder / folder
        return {entry.name for entry in path.iterdir()} if path.is_dir() else set()

    def read(self, name: str) -> bytes:
        """See `Store`."""
        return (self._folder / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """See `Store`."""
        write_whole(self._folder / name, content)


class Remote:
    """A folder on a store, where an object appears whole. Two runs into one folder write the same bytes twice."""

    def __init__(self, url: str) -> None:
        self._system, path = file_system(url)
        self._url, self._path = url, path.rstrip("/")

    @contextmanager
    def taken(self, request: Mapping[str, Any]) -> Iterator[None]:
        """See `Store`."""
        if FIRST.name in (found := self.names("")):
            FIRST.check_same(self.read(FIRST.name), request, self._url)
        else:
            FIRST.check_empty(found, self._url)
            self.write(FIRST.name, FIRST.written(request))
        yield

    def names(self, folder: str) -> set[str]:
        """See `Store`."""
        path = f"{self._path}/{folder}".rstrip("/")
        self._system.invalidate_cache(path)
        try:
            return {str(name).rstrip("/").rpartition("/")[2] for name in self._system.ls(path, detail=False)}
        except FileNotFoundError:
            return set()

    def read(self, name: str) -> bytes:
        """See `Store`."""
        return self._system.cat_file(f"{self._path}/{name}")  # type: ignore[no-any-return]

    def write(self, name: str, content: bytes) -> None:
        """See `Store`."""
        self._system.pipe_file(f"{self._path}/{name}", content)

"""The output of a bulk translation: a folder, on this machine or on a store, and the files of a shard in it.

A shard has its translations as text, JSONL or Parquet, and notes on the lines that went wrong. Every file is written
whole or not at all.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmc.artifact.storage.files import write_whole
from hmc.artifact.storage.rows import needs
from hmc.engine.requests.checks import one_line
from hmc.pipelines.bulk.corpus import file_system, is_url, local_path
from hmc.pipelines.bulk.engines import LineResult
from hmc.pipelines.bulk.settings import BulkSettings
from hmc.pipelines.folders import First, taken_folder

TRANSLATIONS = "translations"
NOTES = "notes"
"""The folders of the output."""
ENDINGS = {"text": "txt", "jsonl": "jsonl", "parquet": "parquet"}
FIRST = First("bulk.json", 1, "corpus, bundle, level or options")
"""The first file of the folder."""


@dataclass(frozen=True)
class ShardFiles:
    """Makes the files of shards. They depend on nothing but the lines, the level and the settings."""

    settings: BulkSettings
    level: str

    def __post_init__(self) -> None:
        if self.settings.output == "parquet":
            needs("pyarrow", "--format parquet writes Parquet")

    def translations_name(self, number: int) -> str:
        """The name of the file of translations. number: of the shard, from 0."""
        return f"{TRANSLATIONS}/{number:06d}.{ENDINGS[self.settings.output]}"

    @staticmethod
    def notes_name(number: int) -> str:
        """The name of the file of notes."""
        return f"{NOTES}/{number:06d}.json"

    def translations(self, number: int, found: Sequence[LineResult]) -> bytes:
        """The file of translations: a line or row for each line of the shard, in order."""
        if self.settings.output == "text":
            return b"".join("\t".join(map(one_line, one.translations)).encode() + b"\n" for one in found)
        first = number * self.settings.shard_lines + 1
        records = [self._record(first + index, one) for index, one in enumerate(found)]
        if self.settings.output == "jsonl":
            return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)
        return self._parquet(records)

    def notes(self, number: int, found: Sequence[LineResult]) -> bytes:
        """The file of notes: how many lines there are of each kind, and the lines that were not translated."""
        first = number * self.settings.shard_lines + 1
        failures = [{"line": first + n, "reason": one.problem} for n, one in enumerate(found) if one.problem]
        notes = {
            "lines": len(found),
            "empty": sum(one.problem is None and not (one.text or "").strip() for one in found),
            "cut": sum(one.cut for one in found),
            "unfinished": sum(one.unfinished for one in found),
            "failures": failures,
        }
        return (json.dumps(notes, ensure_ascii=False) + "\n").encode()

    def _record(self, line: int, found: LineResult) -> dict[str, Any]:
        """The fields of a line. line: its number in the corpus, from 1."""
        translation, *others = found.translations or (None,)
        score, *scores = found.scores or (None,)
        record: dict[str, Any] = {
            "line": line, "text": found.text, "translation": translation, "score": score, "level": self.level,
            "error": found.problem,
        }  # fmt: skip
        if self.settings.options.n_best > 1:
            record["alternatives"] = [
                {"translation": text, "score": value} for text, value in zip(others, scores, strict=True)
            ]
        return record

    def _parquet(self, records: Sequence[dict[str, Any]]) -> bytes:
        import pyarrow as pa
        import pyarrow.parquet as pq

        fields = [
            ("line", pa.int64()), ("text", pa.string()), ("translation", pa.string()), ("score", pa.float64()),
            ("level", pa.string()), ("error", pa.string()),
        ]  # fmt: skip
        if self.settings.options.n_best > 1:
            fields.append(
                ("alternatives", pa.list_(pa.struct([("translation", pa.string()), ("score", pa.float64())])))
            )
        file = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(list(records), schema=pa.schema(fields)), file, compression="zstd")
        return file.getvalue()


class Local:
    """A folder of this machine, with files of names such as `translations/000000.txt`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def taken(self, request: Mapping[str, Any]) -> AbstractContextManager[None]:
        """A context in which the folder belongs to this request, see `hmc.pipelines.folders`."""
        return taken_folder(self._folder, request, FIRST)

    def names(self, folder: str) -> set[str]:
        """The names of the files in a subfolder; empty if the subfolder does not exist."""
        path = self._folder / folder
        return {entry.name for entry in path.iterdir()} if path.is_dir() else set()

    def read(self, name: str) -> bytes:
        """The bytes of an existing file."""
        return (self._folder / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """Writes a file whole or not at all."""
        write_whole(self._folder / name, content)

    def remove(self, name: str) -> None:
        """Deletes a file that is there."""
        (self._folder / name).unlink()


class Remote:
    """A folder on a store, where an object appears whole. Two runs into one folder write the same bytes twice."""

    def __init__(self, url: str) -> None:
        self._system, path = file_system(url)
        self._url = url
        self._path = path.rstrip("/")

    @contextmanager
    def taken(self, request: Mapping[str, Any]) -> Iterator[None]:
        """See `Local`."""
        if FIRST.name in (found := self.names("")):
            FIRST.check_same(self.read(FIRST.name), request, self._url)
        else:
            FIRST.check_empty(found, self._url)
            self.write(FIRST.name, FIRST.written(request))
        yield

    def names(self, folder: str) -> set[str]:
        """See `Local`."""
        path = f"{self._path}/{folder}".rstrip("/")
        self._system.invalidate_cache(path)
        try:
            return {str(name).rstrip("/").rpartition("/")[2] for name in self._system.ls(path, detail=False)}
        except FileNotFoundError:
            return set()

    def read(self, name: str) -> bytes:
        """See `Local`."""
        return self._system.cat_file(f"{self._path}/{name}")  # type: ignore[no-any-return]

    def write(self, name: str, content: bytes) -> None:
        """See `Local`."""
        self._system.pipe_file(f"{self._path}/{name}", content)

    def remove(self, name: str) -> None:
        """See `Local`."""
        self._system.rm_file(f"{self._path}/{name}")


Store = Local | Remote


def open_store(place: str) -> Store:
    """The folder `place`. Raises InvalidRequestError for a URL of an unknown store."""
    return Remote(place) if is_url(place) else Local(local_path(place))

"""The files of one shard: its translations as text, JSONL or Parquet, and notes on the lines that went wrong."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hmc.artifact.storage.rows import needs
from hmc.pipelines.bulk.settings import BulkSettings
from hmc.pipelines.bulk.shards import Found
from hmc.serving.requests.checks import one_line

TRANSLATIONS, NOTES = "translations", "notes"
"""The folders of the output."""
ENDINGS = {"text": "txt", "jsonl": "jsonl", "parquet": "parquet"}


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

    def translations(self, number: int, found: Sequence[Found]) -> bytes:
        """The file of translations: a line or row for each line of the shard, in order."""
        if self.settings.output == "text":
            return b"".join("\t".join(map(one_line, one.translations)).encode() + b"\n" for one in found)
        first = number * self.settings.shard_lines + 1
        records = [self._record(first + index, one) for index, one in enumerate(found)]
        if self.settings.output == "jsonl":
            return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)
        return self._parquet(records)

    def notes(self, number: int, found: Sequence[Found]) -> bytes:
        """The file of notes: how many lines there are of each kind, and those that were not translated."""
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

    def _record(self, line: int, found: Found) -> dict[str, Any]:
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

"""Sentence pairs in rows with named columns: JSONL, Parquet and data sets on the hub.

Rows are read one after the other, of Parquet about a thousand at once: memory does not grow with the file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.storage.rows import TEXTS, has_lone_surrogate, json_row, parquet_batches, parquet_table, text_lines

Pair = tuple[str, str]
ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")
NESTED = "translation"
"""Column that holds both sides, each under its language, as translation data sets on the hub have it."""
PLAIN = ("source", "target")


def is_rows(path: Path) -> bool:
    """Whether the name of a file says that it holds rows with named columns."""
    return path.name.endswith(ENDINGS)


def row_pairs(path: Path, languages: tuple[str, str]) -> Iterator[Pair]:
    """Yields the pairs of a JSONL or Parquet file; see `Columns` for the columns that hold them.

    Raises InvalidRequestError for a file that is missing or damaged, that has no such columns (the message lists those
    it has), and for a row without text in one of them, with its number.
    """
    if path.suffix == ".parquet":
        return _parquet_pairs(path, languages)
    return mapped_pairs(_json_rows(path), languages, str(path), "line")


class Columns(NamedTuple):
    """The columns that hold the two sides.

    The first of these that a file has: columns named as the two languages; `translation` with a field for each
    language; `source` and `target`.
    """

    source: str
    target: str
    nested: bool = False
    """Whether they are fields of `translation`."""

    @classmethod
    def choose(
        cls, columns: Collection[str], inner: Collection[str], languages: tuple[str, str], place: str
    ) -> Columns:
        """Chooses from the columns `found` and the fields `inner` of `translation`.

        Raises InvalidRequestError, which lists them, when both sides are in none of the three forms.
        """
        if languages[0] != languages[1]:
            if set(languages) <= set(columns):
                return cls(*languages)
            if set(languages) <= set(inner):
                return cls(*languages, nested=True)
        if set(PLAIN) <= set(columns):
            return cls(*PLAIN)
        listed = ", ".join(columns) + (f" ({NESTED}: {', '.join(inner)})" if inner else "")
        raise InvalidRequestError(
            f"{place}: no columns with the two sides, {' and '.join(languages)}; it has {listed or 'none'}. Name them "
            f"{languages[0]!r} and {languages[1]!r}, or 'source' and 'target', or give the languages that the file has"
        )


def mapped_pairs(
    rows: Iterable[Mapping[str, Any]], languages: tuple[str, str], place: str, unit: str = "row"
) -> Iterator[Pair]:
    """Yields the pairs of rows that are mappings. place, unit: what messages call the file and a row of it.

    The first row decides on the columns. Raises InvalidRequestError as `row_pairs`.
    """
    columns: Columns | None = None
    for number, row in enumerate(rows, 1):
        inner = row.get(NESTED)
        fields = inner if isinstance(inner, Mapping) else {}
        columns = columns or Columns.choose(list(row), list(fields), languages, place)
        values = fields if columns.nested else row
        where = f"{place} {unit} {number}"
        yield _text(values, columns.source, where), _text(values, columns.target, where)


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    blank = 0
    for number, line in enumerate(text_lines(path), 1):
        if not line.strip():
            blank = blank or number
            continue
        if blank:  # only the end of a file may be blank
            raise InvalidRequestError(f"{path} line {blank}: blank; remove the line")
        try:
            yield json_row(line)
        except ValueError as error:
            raise InvalidRequestError(f"{path} line {number}: {error}; each line must be one JSON object") from error


def _parquet_pairs(path: Path, languages: tuple[str, str]) -> Iterator[Pair]:
    if not path.is_file():
        raise InvalidRequestError(f"{path}: no such file (paths are relative to the working directory)")
    numbers = count(1)
    with parquet_table(path, str(path)) as table:
        schema = table.schema_arrow
        inner = schema.field(NESTED).type if NESTED in schema.names else None
        fields = {f.name: f.type for f in inner or ()} if str(inner).startswith("struct<") else {}
        columns = Columns.choose(schema.names, list(fields), languages, str(path))
        sides = columns.source, columns.target
        for side in sides:
            kind = fields[side] if columns.nested else schema.field(side).type
            if str(kind) not in TEXTS:
                raise InvalidRequestError(f"{path}: column {side!r} holds {kind}, not strings; convert it")
        prefix = f"{NESTED}." if columns.nested else ""
        for batch in parquet_batches(table, [prefix + side for side in sides]):
            values = [_column(batch, side, columns.nested).to_pylist() for side in sides]
            for number, *pair in zip(numbers, *values, strict=False):
                row = dict(zip(sides, pair, strict=True))
                yield _text(row, sides[0], f"{path} row {number}"), _text(row, sides[1], f"{path} row {number}")


def _column(batch: Any, side: str, nested: bool) -> Any:
    if not nested:
        return batch.column(side)
    structs = batch.column(NESTED)
    return structs.flatten()[structs.type.get_field_index(side)]  # a row that is null is null in each field


def _text(row: Mapping[str, Any], column: str, where: str) -> str:
    value = row.get(column)
    if not isinstance(value, str):
        fault = "is null" if value is None else f"is {type(value).__name__}"
        if column not in row:
            fault = "is missing"
        raise InvalidRequestError(f"{where}: {column!r} {fault}, and it must be text; correct the row or remove it")
    if has_lone_surrogate(value):
        raise InvalidRequestError(f"{where}: {column!r} holds a lone surrogate, which is no character; correct the row")
    return value

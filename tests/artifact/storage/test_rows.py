"""Lines of text files."""

from __future__ import annotations

import gzip
from itertools import islice
from pathlib import Path

import pytest

from hmc.artifact import InvalidRequestError
from hmc.artifact.storage.rows import text_lines


@pytest.mark.parametrize("name", ["a.txt", "a.gz"])
def test_lines_end_with_lf_or_crlf_alone(tmp_path: Path, name: str) -> None:
    raw = "\ufeffone\r\ntwo\u2028 and\x0b more\n\n fo\rur".encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    assert list(text_lines(tmp_path / name)) == ["one", "two\u2028 and\x0b more", "", " fo\rur"]


def test_no_more_is_read_than_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\nalso good\n\xe4\n")
    lines = text_lines(tmp_path / "a.txt")
    assert list(islice(lines, 2)) == ["good", "also good"]
    with pytest.raises(InvalidRequestError, match=r"a\.txt: line 3 is not UTF-8 \(byte 0xe4\); convert it: iconv"):
        next(lines)


@pytest.mark.parametrize("form", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_utf_16_without_a_mark_is_no_text(tmp_path: Path, form: str) -> None:
    """Its bytes are UTF-8, with null bytes between the letters."""
    (tmp_path / "a.txt").write_bytes("one\ntwo\n".encode(form))
    with pytest.raises(InvalidRequestError, match=r"a\.txt: line 1 has null bytes, .* iconv -f UTF-16LE -t UTF-8"):
        next(text_lines(tmp_path / "a.txt"))


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("none", None, r"none: no such file \(paths are relative to the working directory\)"),
        ("a.gz", b"no gzip file", r"a\.gz: not a whole gzip file"),
        ("b.gz", gzip.compress(b"line\n" * 1000, mtime=0)[:-20], r"b\.gz: not a whole gzip file"),
        (".", None, "cannot be read: Is a directory"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, raw: bytes | None, message: str) -> None:
    if raw is not None:
        (tmp_path / name).write_bytes(raw)
    with pytest.raises(InvalidRequestError, match=message):
        list(text_lines(tmp_path / name))

"""Lines of text files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from itertools import islice
from pathlib import Path

import pytest

from hmc.artifact import InvalidRequestError
from hmc.artifact.storage.rows import text_lines
from hmc.engine.requests.checks import decode_line
from hmc.pipelines.bulk.corpus import Corpus


@pytest.mark.parametrize("name", ["a.txt", "a.gz"])
def test_lines_end_with_lf_or_crlf_alone(tmp_path: Path, name: str) -> None:
    raw = "\ufeffone\r\ntwo\u2028 and\x0b more\n\n fo\rur".encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    assert list(text_lines(tmp_path / name)) == ["one", "two\u2028 and\x0b more", "", " fo\rur"]


def test_no_more_is_read_than_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\nalso good\n\xe4\n")
    lines = text_lines(tmp_path / "a.txt")
    assert list(islice(lines, 2)) == ["good", "also good"]
    with pytest.raises(InvalidRequestError, match=r"a\.txt: line 3 is not UTF-8 \(byte 0xe4\); .* `iconv"):
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
        ("a.gz", b"no gzip file", r"a\.gz is not a whole gzip file"),
        ("b.gz", gzip.compress(b"line\n" * 1000, mtime=0)[:-20], r"b\.gz is not a whole gzip file"),
        (".", None, "cannot be read: Is a directory"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, raw: bytes | None, message: str) -> None:
    if raw is not None:
        (tmp_path / name).write_bytes(raw)
    with pytest.raises(InvalidRequestError, match=message):
        list(text_lines(tmp_path / name))


def zipped(text: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a.txt", text)
    return made.getvalue()


TEXT = b"A dog runs.\n" * 40
OTHER_FORMS = {
    "bzip2": bz2.compress(TEXT),
    "bzip2 of level 1": bz2.compress(TEXT, 1),
    "xz": lzma.compress(TEXT),
    "zstd": b"\x28\xb5\x2f\xfd\x04\x00" + TEXT,
    "lz4": b"\x04\x22\x4d\x18\x64" + TEXT,
    "zip": zipped(TEXT),
    "gzip": gzip.compress(TEXT),
    "7z": b"7z\xbc\xaf\x27\x1c\x00\x04" + TEXT,
    "PDF": b"%PDF-1.7\n" + TEXT,
    "Parquet": b"PAR1\x15\x04" + TEXT,
    "UTF-16": "A dog.".encode("utf-16"),
    "UTF-32": "A dog.".encode("utf-32"),
}


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_other_forms_are_named_by_every_reader(form: str, tmp_path: Path) -> None:
    """Text files, lines of the command and of its file translations, and corpora in parts."""
    raw, path = OTHER_FORMS[form], tmp_path / "a.txt"
    path.write_bytes(raw)
    lines = raw.splitlines(keepends=True)
    for read in (
        lambda: list(text_lines(path)),
        lambda: decode_line(lines[0], 1, 0, "a.txt"),
        lambda: Corpus([str(path)], None),
    ):
        with pytest.raises(InvalidRequestError, match=f"a.txt is not UTF-8: .*{form.split(maxsplit=1)[0]}") as told:
            read()
        assert ("iconv" in str(told.value)) == form.startswith("UTF")


def test_bytes_that_are_no_text_are_not_to_be_converted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\n\x93\x01\x02\xff\n")
    for read in (
        lambda: list(text_lines(tmp_path / "a.txt")),
        lambda: decode_line(b"\x93\x01\x02\xff\n", 2, 5, "a.txt"),
    ):
        with pytest.raises(
            InvalidRequestError, match=r"a\.txt.*: it is no text in any encoding|; it is no text in any"
        ):
            read()
    assert decode_line(b"PAR1 and %PDF- and BZh are words\n", 1, 0, "a.txt") == "PAR1 and %PDF- and BZh are words"

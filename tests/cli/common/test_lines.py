"""Lines of bytes to texts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hmc.artifact import InvalidRequestError
from hmc.cli.common.texts.lines import decode_lines, open_lines, read_text


@pytest.mark.parametrize(
    ("lines", "texts"),
    [
        ([], []),
        ([b"a\n", b"\n", b"b"], ["a", "", "b"]),
        ([b"a\r\n", b"b\r"], ["a", "b"]),
        ([b"\xef\xbb\xbfa\n", b"\xef\xbb\xbfb\n"], ["a", "\ufeffb"]),
        (["a\u2028b\x0bc\n".encode()], ["a\u2028b\x0bc"]),
    ],
)
def test_only_newlines_end_lines(lines: list[bytes], texts: list[str]) -> None:
    assert list(decode_lines(lines, "stdin")) == texts


def test_what_is_not_utf8_is_named_by_its_offset() -> None:
    lines = decode_lines([b"\xef\xbb\xbfabc\n", b"caf\xe9\n"], "notes.txt")
    assert next(lines) == "abc"
    message = "notes.txt is not UTF-8: byte 0xe9 at offset 10, in line 2; convert it first, for example `iconv"
    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        next(lines)
    with pytest.raises(InvalidRequestError, match="packed by gzip: unpack it first"):
        next(decode_lines([b"\x1f\x8b\n"], "a.gz"))


def test_utf_16_without_a_mark_is_no_text(tmp_path: Path) -> None:
    message = "has null bytes, as UTF-16 without a byte order mark has them: convert it, iconv -f UTF-16LE"
    for form in ("utf-16-le", "utf-16-be"):
        (tmp_path / "a.txt").write_bytes("One dog.\nTwo dogs.\n".encode(form))
        with open_lines([], tmp_path / "a.txt") as lines, pytest.raises(InvalidRequestError, match=f"line 1 {message}"):
            next(lines)
        with pytest.raises(InvalidRequestError, match=f"a.txt {message}"):
            read_text(tmp_path / "a.txt")
    with pytest.raises(InvalidRequestError, match="iconv -f UTF-16 -t UTF-8"):
        next(decode_lines(["a\n".encode("utf-16")], "a.txt"))


def test_arguments_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x\ny\n")
    with open_lines([], tmp_path / "f") as lines:
        assert list(lines) == ["x", "y"]
    with open_lines(["a", ""], None) as lines:
        assert list(lines) == ["a", ""]
    with pytest.raises(InvalidRequestError, match="not both"), open_lines(["a"], tmp_path / "f"):
        pass
    with (
        pytest.raises(InvalidRequestError, match=r"cannot read .*/nope: No such file"),
        open_lines([], tmp_path / "nope"),
    ):
        pass
    with (
        open_lines(["ok", "caf\udce9"], None) as lines,
        pytest.raises(InvalidRequestError, match=r"text 2 .* character 3"),
    ):
        list(lines)

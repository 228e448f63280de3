"""Sentence files: what is read, and what is refused."""

import gzip
from pathlib import Path

import pytest

from hmc.artifact import InvalidRequestError
from hmc.benchmark import TestSet, read_sentences


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "sentences"),
    [
        (b"A man.\nA dog.\n", ["A man.", "A dog."]),
        (b"A man.\r\nA dog.", ["A man.", "A dog."]),
        (b"\xef\xbb\xbfA man.\n\nA dog.\n", ["A man.", "", "A dog."]),
        ("A man.\u2028Still he.\x0b\nÄ.\n".encode(), ["A man.\u2028Still he.\x0b", "Ä."]),
    ],
)
def test_only_line_feeds_end_a_line(tmp_path: Path, content: bytes, sentences: list[str]) -> None:
    assert read_sentences(write(tmp_path / "a.en", content)) == sentences
    assert read_sentences(write(tmp_path / "a.en.gz", gzip.compress(content))) == sentences


def test_the_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.de", "Gut.\nMädchen\n".encode("latin-1"))
    with pytest.raises(
        InvalidRequestError, match=r"a\.de: line 2 is not UTF-8 \(byte 0xe4\); convert it first, for example `iconv"
    ):
        read_sentences(path)


@pytest.mark.parametrize("content", [b"plain text", gzip.compress(b"A man.\n" * 100, mtime=0)[:-12], b""])
def test_a_damaged_gzip_file_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InvalidRequestError, match=r"a\.en\.gz(: holds no sentence| is not a whole gzip file)"):
        read_sentences(write(tmp_path / "a.en.gz", content))


@pytest.mark.parametrize("content", [b"", b"\n", b" \n\t\n"])
def test_a_file_without_sentences_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="holds no sentence; give one sentence a line"):
        read_sentences(write(tmp_path / "a.en", content))


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"missing\.en: no such file"):
        read_sentences(tmp_path / "missing.en")
    with pytest.raises(InvalidRequestError, match="cannot be read: Is a directory"):
        read_sentences(tmp_path)


def test_files_of_different_lengths_are_refused(tmp_path: Path) -> None:
    src, ref = write(tmp_path / "a.en", b"A man.\nA dog.\n"), write(tmp_path / "a.de", b"Ein Mann.\n")
    with pytest.raises(InvalidRequestError, match=r"a\.en has 2 lines and .*a\.de has 1: each source line needs"):
        TestSet.read(src, ref)


def test_a_line_that_is_too_long_to_translate_is_named(tmp_path: Path) -> None:
    src, ref = write(tmp_path / "a.en", b"A\nB\n" + b"x" * 65_537), write(tmp_path / "a.de", b"X\nY\n" + b"z" * 70_000)
    with pytest.raises(InvalidRequestError, match=r"a\.en: line 3 has 65,537 bytes, and a text may have 65,536; give"):
        TestSet.read(src, ref)
    assert len(TestSet.read(src, ref, limit=2).sources) == 2
    assert len(TestSet.read(tmp_path / "a.de", limit=2).sources) == 2
    longest, reference = (
        write(tmp_path / "b.en", b"A\n" + b"x" * 65_536),
        write(tmp_path / "b.de", b"X\n" + b"z" * 70_000),
    )
    assert TestSet.read(longest, reference).references


def test_the_limit_takes_the_first_lines_of_both(tmp_path: Path) -> None:
    src, ref = write(tmp_path / "news.2016.en", b"A\nB\nC\n"), write(tmp_path / "a.de", b"X\nY\nZ\n")
    assert TestSet.read(src, ref, limit=2) == TestSet("news.2016", ("A", "B"), ("X", "Y"))
    with pytest.raises(InvalidRequestError, match="limit 0: choose 1 sentence or more"):
        TestSet.read(src, ref, limit=0)


def test_a_single_pair_cannot_be_compared(tmp_path: Path) -> None:
    src, ref = write(tmp_path / "a.en", b"A\n"), write(tmp_path / "a.de", b"X\n")
    with pytest.raises(InvalidRequestError, match=r"a\.en: 1 sentence pair, and the significance .*needs 2 or more"):
        TestSet.read(src, ref)
    assert TestSet.read(src).sources == ("A",)


def test_the_name_is_the_files_without_suffixes(tmp_path: Path) -> None:
    assert TestSet.read(write(tmp_path / "flickr.en.gz", gzip.compress(b"A\n"))).name == "flickr"
    assert TestSet.read(tmp_path / "flickr.en.gz", name="mine").name == "mine"

"""Source text: plain and gzip files, lines numbered over all of them, and what tells one text from another."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from hmc.artifact import InvalidRequestError
from hmc.pipelines.distillation.sources import SourceFile, all_lines, read_sources, sample


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n", encoding="utf-8")
    (tmp_path / "b.gz").write_bytes(gzip.compress("drei\u2028und\nvier".encode()))
    return [tmp_path / "a.txt", tmp_path / "b.gz"]


def test_lines_are_numbered_over_all_files(files: list[Path]) -> None:
    found = [(line.number, line.text, line.place.rpartition("/")[2]) for line in all_lines(files)]
    assert found == [
        (0, "one", "a.txt line 1"), (1, "", "a.txt line 2"), (2, "two", "a.txt line 3"),
        (3, "drei\u2028und", "b.gz line 1"), (4, "vier", "b.gz line 2"),
    ]  # fmt: skip
    assert [file.lines for file in read_sources(files)] == [3, 2]


def test_packing_a_file_does_not_change_its_text(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "c.gz").write_bytes(gzip.compress(files[0].read_bytes()))
    plain, packed = SourceFile.read(files[0]), SourceFile.read(tmp_path / "c.gz")
    assert plain.identity() == packed.identity()
    files[0].write_text("one\n\ntwo!\n", encoding="utf-8")
    assert SourceFile.read(files[0]).identity() != plain.identity()


def test_a_sample_is_spread_and_has_text(files: list[Path]) -> None:
    assert sample(files, 5, 5) == ["one", "two", "drei\u2028und", "vier"]
    assert sample(files, 5, 2) == ["one", "two", "vier"]


def test_no_text_at_all(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidRequestError, match="no line to translate"):
        read_sources([tmp_path / "empty"])
    with pytest.raises(InvalidRequestError, match="no such file"):
        read_sources([tmp_path / "absent"])

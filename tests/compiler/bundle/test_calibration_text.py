"""Calibration reads and tokenises no more of a text than it needs."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tiny import SENTENCES

from hmc.artifact import InvalidRequestError
from hmc.artifact.tokenizer.tokenizer import JointTokenizer
from hmc.compiler import BundleBuilder, read_calibration
from hmc.compiler.bundle import requests


@pytest.mark.parametrize("name", ["calibrate.en", "calibrate.en.gz"])
def test_lines_after_those_that_are_needed_are_not_read(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next line is not UTF-8, so reading it would fail."""
    monkeypatch.setattr(requests, "LINES", 3)
    content = "\ufeffone\r\n\n two \nthree\n".encode() + b"\xff\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read_calibration(tmp_path / name) == ["one", " two ", "three"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"\n \n", "holds no sentence"),
        (b"good\n\xe4\n", r"line 2 is not UTF-8 \(byte 0xe4\)"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "x").write_bytes(content)
    with pytest.raises(InvalidRequestError, match=message):
        read_calibration(tmp_path / "x")


def test_a_damaged_archive(tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"line\n" * 1000)[:-12])
    with pytest.raises(InvalidRequestError, match="not a whole gzip file"):
        read_calibration(tmp_path / "x.gz")


def test_only_sentences_that_are_used_are_tokenised(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded, taken = [], []
    encode = JointTokenizer.encode

    def counted(tokenizer: JointTokenizer, sentence: str) -> list[int]:
        encoded.append(sentence)
        return encode(tokenizer, sentence)

    def lines() -> Iterator[str]:
        for number in range(10_000):
            taken.append(number)
            yield SENTENCES[number % len(SENTENCES)]

    monkeypatch.setattr(JointTokenizer, "encode", counted)
    with (
        pytest.raises(RuntimeError, match="not finished"),
        BundleBuilder.open(tmp_path / "b", [tiny_checkpoint], calibration=lines()),
    ):
        pass
    assert len(encoded) == requests.SENTENCES
    assert len(taken) == requests.SENTENCES

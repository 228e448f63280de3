"""What is read: plain text, gzip, JSONL and Parquet, here or on a store; bad lines keep their number."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hmc.artifact import InvalidRequestError
from hmc.pipelines.bulk.corpus import LONGEST, Corpus, CorpusLine


def lines_of(corpus: Corpus, size: int = 100) -> list[CorpusLine]:
    return [line() for _, part in corpus.shards(size) for line in part]


def texts_of(corpus: Corpus) -> list[str | None]:
    return [line.text for line in lines_of(corpus)]


def test_files_are_one_corpus_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\ntwo")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"three\x0b\nfour\n"))
    corpus = Corpus([str(tmp_path / "a.txt"), str(tmp_path / "b.txt.gz")], None)
    assert (corpus.lines, texts_of(corpus)) == (5, ["one", "", "two", "three\x0b", "four"])
    assert [(number, len(part)) for number, part in corpus.shards(2)] == [(0, 2), (1, 2), (2, 1)]


def test_packing_a_file_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\n")
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    plain, packed = (Corpus([str(tmp_path / name)], None).sources[0].identity() for name in ("a.txt", "a.gz"))
    assert plain == packed


def test_bad_lines_have_a_reason_and_keep_their_number(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\n\xff\n" + b"x" * (3 * LONGEST) + b"\nb\n")
    found = lines_of(Corpus([str(path)], None))
    assert [line.text for line in found] == ["a", None, None, "b"]
    assert "not UTF-8" in (found[1].problem or "")
    assert "longer than 1,048,576 bytes" in (found[2].problem or "")


def test_a_field_of_jsonl(tmp_path: Path) -> None:
    rows = [
        json.dumps({"id": 1, "text": "a\nb"}),
        "{",
        "[1]",
        json.dumps({"text": 3}),
        '{"text": "\\ud800"}',
        '{"a": 1}',
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(rows))
    found = lines_of(Corpus([str(path)], "text"))
    assert found[0] == CorpusLine("a\nb")
    said = [
        "not JSON",
        "no JSON object",
        "field 'text' is int",
        "lone surrogate",
        "field 'text' is missing; there are a",
    ]
    assert all(words in (line.problem or "") for words, line in zip(said, found[1:], strict=True))


def test_a_column_of_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", None, "c"], "n": [1, 2, 3]}), path)
    corpus = Corpus([str(path)], "text")
    assert corpus.lines == 3
    assert lines_of(corpus) == [CorpusLine("a"), CorpusLine(None, "null in this column"), CorpusLine("c")]
    with pytest.raises(InvalidRequestError, match="no column 'txt'; it has text, n"):
        Corpus([str(path)], "txt")
    with pytest.raises(InvalidRequestError, match="column 'n' holds int64, not strings"):
        Corpus([str(path)], "n")
    with pytest.raises(InvalidRequestError, match="name the column that holds the text with text_field"):
        Corpus([str(path)], None)


def test_a_cell_that_is_not_utf8_is_a_problem_of_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffb")])
    pq.write_table(pa.table({"text": pa.chunked_array([pa.array(["a"]), bad])}), path)
    assert lines_of(Corpus([str(path)], "text")) == [CorpusLine("a"), CorpusLine(None, "not UTF-8")]


def test_a_store(tmp_path: Path) -> None:
    with fsspec.open("memory://corpus/a.txt.gz", "wb") as file:
        file.write(gzip.compress(b"one\ntwo\n"))
    assert texts_of(Corpus(["memory://corpus/a.txt.gz"], None)) == ["one", "two"]
    (tmp_path / "b.txt").write_text("b\n")
    assert texts_of(Corpus([f"file://{tmp_path / 'b.txt'}"], None)) == ["b"]


@pytest.mark.parametrize(
    ("name", "content", "field", "said"),
    [
        ("a.txt", None, None, r"a\.txt: no such file \(paths are relative"),
        ("a.txt", b"", None, "holds no line to translate"),
        ("a.gz", b"text", None, "not a whole gzip file"),
        ("a.gz", gzip.compress(b"text" * 999)[:-9], None, "not a whole gzip file"),
        ("a.txt", "text\n".encode("utf-16"), None, "is not UTF-8: convert it: iconv -f UTF-16"),
        ("a.txt", "text\n".encode("utf-16-le"), None, "is not UTF-8: it has null bytes, .* iconv -f UTF-16LE"),
        ("a.txt", gzip.compress(b"text"), None, "is not UTF-8: it is packed by gzip: unpack it first"),
        ("a.parquet", b"text", "text", "no Parquet file that can be read"),
        (
            "a.jsonl",
            b'{"txt": "a"}\n',
            "text",
            r"line 1: field 'text' is missing; there are txt\. .*is text_field",
        ),
    ],
    ids=["missing", "empty", "no gzip", "cut gzip", "UTF-16", "no mark", "no ending", "no Parquet", "no such field"],
)
def test_files_that_cannot_be_used(tmp_path: Path, name: str, content: bytes | None, field: str, said: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidRequestError, match=said):
        Corpus([str(tmp_path / name)], field)


def test_a_line_with_null_bytes_is_not_translated(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\nt\0wo\n")
    first, second = lines_of(Corpus([str(tmp_path / "a.txt")], None))
    assert (first.text, second.text) == ("one", None)
    assert "null bytes" in (second.problem or "")


@pytest.mark.parametrize(("place", "said"), [("memory://nothing/a.txt", "no such file"), ("nowhere://a", "nowhere")])
def test_stores_that_cannot_be_used(place: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        Corpus([place], None)


@pytest.mark.parametrize(("module", "place"), [("pyarrow", "a.parquet"), ("fsspec", "s3://bucket/a.txt")])
def test_a_missing_extra_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, place: str
) -> None:
    for name in [name for name in sys.modules if name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(InvalidRequestError, match=rf"needs {module}: .*pip install '.*\[bulk\]'"):
        Corpus([place if "://" in place else str(tmp_path / place)], "text")

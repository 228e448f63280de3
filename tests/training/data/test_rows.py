"""Corpora of rows with named columns: which columns, in what order, with what errors, in how much memory."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.tiny import SENTENCES, tiny_tokenizer

from hmc.artifact import InvalidRequestError
from hmc.training import Vocabulary
from hmc.training.analysis.common.subject import read_text
from hmc.training.data.corpus import TokenCorpus
from hmc.training.data.parallel_text import check_corpora, read_dev, read_pairs

PAIRS = [(s, s.upper()) for s in SENTENCES]
FORMS: dict[str, list[dict[str, Any]]] = {
    "languages": [{"id": 1, "de": t, "en": s, "source": "web", "target": "?"} for s, t in PAIRS],
    "nested": [{"translation": {"de": t, "en": s, "fr": None}, "source": "web", "target": "?"} for s, t in PAIRS],
    "plain": [{"target": t, "source": s, "en": 3} for s, t in PAIRS],
}
Rows = Sequence[Mapping[str, Any]]


def write_jsonl(path: Path, rows: Rows) -> str:
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return str(path)


def write_parquet(path: Path, rows: Rows, group: int = 5) -> str:
    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=group)
    return str(path)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_columns_reads_the_same(form: str, tmp_path: Path) -> None:
    rows = FORMS[form]
    for corpus in (
        write_jsonl(tmp_path / "a.jsonl", rows),
        write_jsonl(tmp_path / "a.jsonl.gz", rows),
        write_parquet(tmp_path / "a.parquet", rows),
    ):
        assert list(read_pairs(corpus, ("en", "de"))) == PAIRS
        assert read_dev(corpus, ("en", "de"), 3).pairs == PAIRS[:3]
        check_corpora([corpus], ("en", "de"))
    if form != "plain":
        swapped = [(t, s) for s, t in PAIRS]
        assert list(read_pairs(str(tmp_path / "a.parquet"), ("de", "en"))) == swapped


def test_shards_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    rows = FORMS["languages"]
    for number in (2, 0, 1):
        write_parquet(tmp_path / f"train-{number}.parquet", rows[number * 4 : number * 4 + 4])
    write_parquet(tmp_path / "test-0.parquet", rows[:1])
    assert list(read_pairs(f"{tmp_path}/train-*.parquet")) == PAIRS
    named = [f"{tmp_path}/train-{number}.parquet" for number in (1, 0)]
    assert list(read_pairs(" ".join(named))) == PAIRS[4:8] + PAIRS[:4]
    write_jsonl(tmp_path / "odd[1].jsonl", rows)
    (tmp_path / ".train-3.parquet").write_bytes(b"not whole yet")
    assert list(read_pairs(f"{tmp_path}/train-[0-9].parquet")) == PAIRS
    assert list(read_pairs(f"{tmp_path}/odd[1].jsonl")) == PAIRS, "a file of that name is no pattern"
    with pytest.raises(InvalidRequestError, match=r"a folder, which may hold .* by a pattern, such as '.*/train-\*"):
        list(read_pairs(str(tmp_path)))
    with pytest.raises(InvalidRequestError, match="no file matches this pattern"):
        list(read_pairs(f"{tmp_path}/none-*.parquet"))
    (tmp_path / "train.md").write_text("")
    with pytest.raises(InvalidRequestError, match=r"pattern also matches .*train\.md"):
        list(read_pairs(f"{tmp_path}/train*"))


def test_blank_lines_at_the_end_are_no_rows(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", FORMS["languages"])
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("\n \n")
    assert list(read_pairs(str(tmp_path / "a.jsonl"))) == PAIRS


NO_COLUMNS = r"no columns with the two sides, en and de; it has id, text\. Name them 'en' and 'de', or 'source'"
BAD: dict[str, tuple[Rows | bytes, str]] = {
    "others.jsonl": ([{"id": 1, "text": "a"}], NO_COLUMNS),
    "others.parquet": ([{"id": 1, "text": "a"}], NO_COLUMNS),
    "other-languages.jsonl": ([{"translation": {"en": "a", "fr": "b"}}], r"it has translation \(translation: en, fr\)"),
    "other-languages.parquet": ([{"translation": {"en": "a", "fr": "b"}}], r"\(translation: en, fr\)"),
    "null.jsonl": ([{"en": "a", "de": "b"}, {"en": "a", "de": None}], r"null\.jsonl line 2: 'de' is null, and it must"),
    "null.parquet": ([{"en": "a", "de": "b"}, {"en": "a", "de": None}], r"null\.parquet row 2: 'de' is null, and it"),
    "whole-null.parquet": ([{"translation": {"en": "a", "de": "b"}}, {"translation": None}], "row 2: 'en' is null"),
    "number.jsonl": ([{"en": "a", "de": 3}], "line 1: 'de' is int, and it must be text"),
    "number.parquet": ([{"en": "a", "de": 3}], "column 'de' holds int64, not strings"),
    "missing.jsonl": ([{"en": "a", "de": "b"}, {"en": "a"}], "line 2: 'de' is missing"),
    "surrogate.jsonl": (b'{"en": "\\ud800", "de": "b"}\n', "line 1: 'en' holds a lone surrogate"),
    "broken.jsonl": (b'{"en": "a", "de": "b"}\n{"en"\n', "line 2: not JSON: .*each line must be one JSON object"),
    "blank.jsonl": (b'{"en": "a", "de": "b"}\n\n{"en": "a", "de": "b"}\n', "line 2: blank; remove the line"),
    "list.jsonl": (b"[1]\n", "line 1: no JSON object"),
    "no.parquet": (b"PAR1 and no more", "no Parquet file that can be read"),
    "latin.jsonl": (b'{"en": "\xe4"}\n', "line 1 is not UTF-8"),
    "cut.jsonl.gz": (gzip.compress(b'{"en": "a", "de": "b"}\n' * 999)[:-9], "not a whole gzip file"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    content, said = BAD[name]
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        (write_parquet if name.endswith(".parquet") else write_jsonl)(tmp_path / name, content)
    with pytest.raises(InvalidRequestError, match=said):
        list(read_pairs(str(tmp_path / name), ("en", "de")))


def test_a_damaged_page_of_parquet_is_named(tmp_path: Path) -> None:
    path = Path(write_parquet(tmp_path / "a.parquet", FORMS["languages"]))
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    with pytest.raises(InvalidRequestError, match=r"(?s)a\.parquet is no Parquet file that can be .*copy it again"):
        list(read_pairs(str(path)))


@pytest.mark.parametrize("form", FORMS)
def test_a_data_set_as_on_the_hub(form: str, tmp_path: Path) -> None:
    """`datasets` reads a folder as it reads the hub."""
    (tmp_path / "set").mkdir()
    write_parquet(tmp_path / "set" / "train.parquet", FORMS[form])
    assert list(read_pairs(f"hub:{tmp_path}/set")) == PAIRS
    write_parquet(tmp_path / "set" / "train.parquet", [{"id": 1}])
    with pytest.raises(InvalidRequestError, match=r"corpus hub:.*no columns with the two sides, en and de; it has id"):
        list(read_pairs(f"hub:{tmp_path}/set"))


@pytest.mark.parametrize("name", ["none.jsonl", "none.parquet"])
def test_a_missing_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no such file"):
        check_corpora([str(tmp_path / name)], ("en", "de"))


def test_mistakes_in_any_shard_are_found_before_the_run(tmp_path: Path) -> None:
    for number, row in enumerate(({"en": "a", "fr": "b"}, {"en": "a", "de": "b"})):
        write_parquet(tmp_path / f"{number}.parquet", [row])
    check_corpora([f"{tmp_path}/0.parquet"], ("en", "fr"))
    with pytest.raises(
        InvalidRequestError, match=r"1\.parquet: no columns with the two sides, en and fr; it has en, de"
    ):
        check_corpora([f"{tmp_path}/*.parquet"], ("en", "fr"))


def test_languages_that_are_equal_choose_no_column(tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "a.jsonl", FORMS["languages"])
    assert next(read_pairs(corpus, ("en", "en"))) == ("web", "?")


def test_the_first_pairs_are_read_without_the_rest(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"en": "a", "de": "b"}\n' * 3 + b"not JSON\n")
    assert read_text(str(tmp_path / "a.jsonl"), ("en", "de"), 2).pairs == (("a", "b"),) * 2


def test_tokens_depend_on_the_languages_and_on_every_shard(tmp_path: Path) -> None:
    for number in (0, 1):
        write_parquet(tmp_path / f"{number}.parquet", FORMS["nested"][number * 6 : number * 6 + 6])
    corpus, vocabulary = f"{tmp_path}/*.parquet", Vocabulary(tiny_tokenizer())

    def tokens(languages: tuple[str, str]) -> TokenCorpus:
        return TokenCorpus.build([corpus], vocabulary, 200, tmp_path / "cache", languages)

    first, other = tokens(("en", "de")), tokens(("de", "en"))
    assert first.batch(np.array([7]))[0] == [vocabulary.encode(SENTENCES[7])]
    assert other.batch(np.array([7])) == first.batch(np.array([7]))[::-1]
    write_parquet(tmp_path / "2.parquet", FORMS["nested"][:2])
    assert len(tokens(("en", "de"))) == len(SENTENCES) + 2, "a new shard is new text"


PEAKS = """
import sys, tracemalloc
import pyarrow as pa
from pathlib import Path
from hmc.training.data.corpus import TokenCorpus
from hmc.training.data.parallel_text import read_pairs
from hmc.training.data.vocabulary import Vocabulary
corpus, model, cache = sys.argv[1:]
if model:
    vocabulary = Vocabulary(Path(model).read_bytes())
    TokenCorpus.build([corpus.replace("big", "small")], vocabulary, 200, Path(cache), ("en", "de"))  # imports
tracemalloc.start()
if model:
    TokenCorpus.build([corpus], vocabulary, 200, Path(cache), ("en", "de"))
else:
    assert sum(1 for _ in read_pairs(corpus)) > 50_000
print(tracemalloc.get_traced_memory()[1], pa.default_memory_pool().max_memory())
"""
"""Arguments: corpus, tokenizer or nothing to read only, cache. Prints the peaks of Python's and of Arrow's memory in
bytes, whatever had been imported before."""


def peaks(corpus: str, model: Path | str = "", cache: Path | str = "") -> tuple[int, int]:
    found = subprocess.run(
        [sys.executable, "-c", PEAKS, corpus, str(model), str(cache)], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )  # fmt: skip
    python, arrow = map(int, found.stdout.split())
    return python, arrow


@pytest.mark.slow
def test_reading_takes_no_more_memory_for_a_larger_file(tmp_path: Path) -> None:
    """15 MB of text a side in many row groups, and in a single one: the readers hold a few of 30."""
    rng = np.random.default_rng(0)
    sides = ["".join(map(chr, rng.integers(97, 123, 250))) + str(n) for n in range(512)]
    table = pa.table({side: [f"{n} {sides[n % 512]}" for n in range(60_000)] for side in ("en", "de", "other")})
    for group in (2000, 200_000):
        pq.write_table(table, tmp_path / "big.parquet", row_group_size=group, use_dictionary=False, compression="none")
        python, arrow = peaks(str(tmp_path / "big.parquet"))
        assert python < 4e6
        assert arrow < 8e6
    with_all = pa.default_memory_pool()
    before = with_all.bytes_allocated()
    whole = pq.read_table(tmp_path / "big.parquet", columns=["en", "de"])
    assert with_all.bytes_allocated() - before > 30e6, "the same numbers for a reader that takes the whole file"
    del whole


@pytest.mark.slow
def test_tokenising_takes_no_more_memory_for_a_larger_file(tmp_path: Path) -> None:
    """Only the lengths of the pairs are in memory, 8 bytes a pair; their ids are written, and then mapped."""
    (tmp_path / "t.model").write_bytes(tiny_tokenizer())
    found = []
    for times in (200, 800):
        (tmp_path / str(times)).mkdir()
        for name, n in (("big", times), ("small", 1)):
            write_parquet(tmp_path / str(times) / f"{name}.parquet", FORMS["languages"] * n, 500)
        corpus = str(tmp_path / str(times) / "big.parquet")
        found.append(peaks(corpus, tmp_path / "t.model", tmp_path / f"cache{times}"))
    pairs = 600 * len(SENTENCES)
    ids = sum(f.stat().st_size for f in (tmp_path / "cache800").glob("*/*.arrow"))
    growth = [large - small for small, large in zip(*found, strict=True)]
    assert max(growth) < 16 * pairs, "the lengths of a pair, and as much again"
    assert ids > 200 * pairs, "the ids are far more than that"

"""From files of translations to text: what is held out, what is dropped, and how the corpus is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hmc.artifact import InvalidRequestError
from hmc.pipelines import Distilled, Filters
from hmc.pipelines.distillation.results import write_results
from hmc.pipelines.distillation.shards import Record, TeacherHypothesis, shard_path, write_shard
from hmc.training.data.parallel_text import read_pairs


def translated(folder: Path, lines: int) -> None:
    """Two files of translations. Of every ten lines, the last is a copy."""
    records = [
        Record(n, f"line {n}", 3, (TeacherHypothesis(f"Zeile {n}" if n % 10 < 9 else f"Line {n}", -0.5, 3),))
        for n in range(lines)
    ]
    write_shard(shard_path(folder, 0), records[: lines // 2])
    write_shard(shard_path(folder, 1), records[lines // 2 :])


def test_dev_text_is_spread_evenly_and_does_not_train(tmp_path: Path) -> None:
    translated(tmp_path, 100)
    found = write_results(tmp_path, 2, Filters(), held_out=3)
    assert found == Distilled(tmp_path, 100, 87, 3, {"copy": 10}, -0.5)
    kept = [n for n in range(100) if n % 10 < 9]
    dev = [f"line {kept[position]}" for position in (15, 45, 75)]
    assert [source for source, _ in read_pairs(found.dev_corpus())] == dev
    train = list(read_pairs(found.corpus()))
    assert [source for source, _ in train] == [f"line {n}" for n in kept if f"line {n}" not in dev]
    assert all(target == source.replace("line", "Zeile") for source, target in train)
    assert (tmp_path / "dropped.tsv").read_text().splitlines()[0] == "copy\t10\tline 9\tLine 9"


def test_no_more_than_a_tenth_is_held_out(tmp_path: Path) -> None:
    translated(tmp_path, 40)
    assert write_results(tmp_path, 2, Filters(), held_out=500).dev == 3


def test_other_filters_and_a_lost_file_write_the_text_again(tmp_path: Path) -> None:
    translated(tmp_path, 40)
    first = write_results(tmp_path, 2, Filters(), held_out=0)
    assert (first.train, first.dev) == (36, 0)
    with pytest.raises(InvalidRequestError, match="holds out no dev text"):
        first.dev_corpus()
    assert write_results(tmp_path, 2, Filters(keep=("copy",)), held_out=0).train == 40
    (tmp_path / "train.target.txt").unlink()
    assert write_results(tmp_path, 2, Filters(keep=("copy",)), held_out=0).train == 40
    assert len((tmp_path / "train.target.txt").read_text().splitlines()) == 40
    (tmp_path / "report.json").write_text(json.dumps([1]))
    assert write_results(tmp_path, 2, Filters(), held_out=0) == first


def test_a_report_leaves_with_its_text(tmp_path: Path) -> None:
    """Filters that leave nothing empty the files, so the report of other filters must not stand for them later."""
    write_shard(shard_path(tmp_path, 0), [Record(0, "One", 3, (TeacherHypothesis("one", -0.5, 3),))])
    assert write_results(tmp_path, 1, Filters(keep=("copy",)), held_out=0).train == 1
    with pytest.raises(InvalidRequestError, match="none of 1 lines is left"):
        write_results(tmp_path, 1, Filters(), held_out=0)
    again = write_results(tmp_path, 1, Filters(keep=("copy",)), held_out=0)
    assert len(list(read_pairs(again.corpus()))) == again.train == 1


@pytest.mark.parametrize("name", ["plain", "with blank", "it's", 'a "b"'])
def test_the_corpus_is_read_whatever_the_folder_is_called(tmp_path: Path, name: str) -> None:
    translated(tmp_path / name, 40)
    found = write_results(tmp_path / name, 2, Filters(), held_out=0)
    assert len(list(read_pairs(found.corpus()))) == 36


def test_a_path_with_both_quotes_cannot_be_named(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s a "b"'
    translated(folder, 40)
    with pytest.raises(InvalidRequestError, match="both kinds of quotes"):
        write_results(folder, 2, Filters(), held_out=0).corpus()

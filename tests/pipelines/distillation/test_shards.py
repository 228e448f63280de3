"""Files of translations: what is written is read, whole or not at all, and alike every time."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from hmc.artifact import InvalidArtifactError
from hmc.pipelines.distillation.shards import Record, TeacherHypothesis, read_shard, shard_path, write_shard

RECORDS = [
    Record(
        7,
        'Zwei\tMänner\u2028 "hier"',
        5,
        (TeacherHypothesis("Two men", -0.25, 3), TeacherHypothesis("Men", -0.5, 2, True)),
    ),
    Record(8, "", skipped="empty"),
]


def test_records_come_back(tmp_path: Path) -> None:
    path = shard_path(tmp_path, 3)
    write_shard(path, RECORDS)
    assert path.name == "000003.jsonl.gz"
    assert list(read_shard(path)) == RECORDS


def test_equal_records_are_equal_bytes(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        write_shard(tmp_path / name, RECORDS)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


@pytest.mark.parametrize("damage", [b"", b"\x1f\x8b\x08", None, b"[]\n", b'{"line": 1}\n', b'{"other": 1}\n'])
def test_a_damaged_file_is_named(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "x.jsonl.gz"
    write_shard(path, RECORDS)
    if damage is None:
        path.write_bytes(path.read_bytes()[:-9])
    elif damage[:1] in (b"[", b"{"):
        path.write_bytes(gzip.compress(damage))
    elif damage:
        path.write_bytes(damage)
    else:
        path.unlink()
    with pytest.raises(
        InvalidArtifactError, match=r"translations .*x\.jsonl\.gz cannot be used(.|\n)*Delete this file"
    ):
        list(read_shard(path))

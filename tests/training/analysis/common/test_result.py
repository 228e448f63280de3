"""Results on disk: the same bytes each time, read back completely, and clear errors for other files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from hmc.artifact import InvalidArtifactError, InvalidRequestError
from hmc.training.analysis.common.records import HeadImportance, ImportanceData, Spread
from hmc.training.analysis.common.result import Result, corpus_source, read_result, write_result
from hmc.training.analysis.common.subject import choose_device, load_subject, read_text
from hmc.training.analysis.common.summary import Summary


def a_result() -> Result[ImportanceData]:
    head = HeadImportance(kind="cross", layer=0, index=1, importance=1.5, standard_error=math.nan)
    spread = Spread(heads=1, mean=1.5, variance=0, least=1.5, most=1.5)
    data = ImportanceData(heads=[head], all=spread, kinds={"cross": spread})
    return Result(command="importance", settings={"seed": 1, "ü": "Δ"}, data=data)


def test_written_and_read_back(tmp_path: Path) -> None:
    path = write_result(a_result(), tmp_path / "new" / "folder")
    assert path.name == "importance.json"
    again = read_result(path, ["importance"])
    assert again.data.heads[0].importance == 1.5
    assert again.data.heads[0].standard_error is None, "NaN is not JSON: it becomes null"
    assert again.settings == {"seed": 1, "ü": "Δ"}
    first = path.read_bytes()
    write_result(a_result(), path.parent)
    assert path.read_bytes() == first
    assert [p.name for p in path.parent.iterdir()] == ["importance.json"], "no temporary file is left"
    assert {"python", "torch", "numpy", "sacrebleu"} <= again.versions.keys()


def test_versions_that_a_file_does_not_state_are_not_made_up(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps({"command": "trajectory", "data": {"runs": {}}}))
    assert read_result(tmp_path / "r.json").versions == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a result of `hmc analyze`"),
        ('{"command": "ablate"}', "data: Field required"),
        (json.dumps({"command": "ablate", "data": {"full": {}}}), "heads: Field required"),
        (json.dumps({"schema_version": 9, "command": "ablate", "data": {}}), "schema version 9; this hmc reads 1"),
        (json.dumps({"command": "roles", "data": {}}), "is a result of roles; needed is one of ablate, groups"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(InvalidRequestError, match=message):
        read_result(tmp_path / "r.json", ["ablate", "groups"])
    with pytest.raises(InvalidRequestError, match="No such file"):
        read_result(tmp_path / "missing.json")


def test_the_digest_of_a_corpus_is_that_of_the_sentences_used(corpus: str) -> None:
    whole, part = read_text(corpus, ("en", "de")), read_text(corpus, ("en", "de"), sentences=3)
    assert (whole.source.sentences, part.source.sentences) == (12, 3)
    assert whole.source.sha256 != part.source.sha256
    assert part.source.sha256 == corpus_source("any name", whole.pairs[:3]).sha256
    assert whole.source.name == corpus


def test_pairs_with_an_empty_side_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("A dog.\tEin Hund.\n\tLeer.\nA cat.\t \nA man.\tEin Mann.\n", encoding="utf-8")
    text = read_text(f"{tmp_path}/t.tsv", ("en", "de"))
    assert text.sources == ["A dog.", "A man."]
    assert text.source.left_out == ["2 of 4 pairs have an empty side, and are left out"]
    (tmp_path / "wide.tsv").write_text("17\tA dog.\tEin Hund.\n18\tA cat.\tEine Katze.\n", encoding="utf-8")
    (columns,) = read_text(f"{tmp_path}/wide.tsv", ("en", "de")).source.left_out
    assert columns.startswith("2 lines have more than two columns, and only the first two are read: ")
    assert "line 1: '17' and 'A dog.'" in columns
    with pytest.raises(InvalidRequestError, match="has 1 sentence pairs with text on both sides"):
        read_text(f"{tmp_path}/t.tsv", ("en", "de"), sentences=1)


def test_a_subject_is_ready_to_be_looked_at(uneven_checkpoint: Path, tmp_path: Path) -> None:
    subject = load_subject(uneven_checkpoint, "cpu")
    assert not subject.model.training
    assert not any(p.requires_grad for p in subject.model.parameters())
    assert (subject.source.heads, subject.languages) == (12, ("en", "de"))
    assert len(subject.source.digest) == 64
    with pytest.raises(InvalidArtifactError, match="does not exist"):
        load_subject(tmp_path / "nothing", "cpu")
    with pytest.raises(InvalidRequestError, match="device 'tpu': choose auto, cpu, cuda"):
        choose_device("tpu")


def test_a_table_as_markdown() -> None:
    table = Summary("title", ("model", "BLEU"), (("a|b", "30.00"), ("c", "–")), ("a note",))
    assert table.markdown() == "| model | BLEU |\n| --- | ---: |\n| a/b | 30.00 |\n| c | – |\n\na note\n"

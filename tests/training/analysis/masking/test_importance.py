"""Importance on a corpus: equal to `hmc.training.model.importance`, and written into a copy of the checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.training.analysis.helpers import LAYOUT

from hmc.artifact.checkpoint.checkpoint import load_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.training.analysis.common.result import head_of, table_of, write_result
from hmc.training.analysis.common.subject import Subject, Text, load_subject
from hmc.training.analysis.masking import importance
from hmc.training.analysis.masking.ranking import RankBy
from hmc.training.data.batches import make_batch
from hmc.training.model.importance import corpus_importance


def test_importance_is_that_of_the_training_room(subject: Subject, text: Text) -> None:
    result = importance.analyse(subject, text)
    ids = [tuple(subject.vocabulary.encode(side) for side in pair) for pair in text.pairs]
    batch = make_batch([s for s, _ in ids], [t for _, t in ids], subject.model.arch.pad_id)
    expected = corpus_importance(subject.model, [batch], LAYOUT)
    assert len(result.data["heads"]) == LAYOUT.total
    values = []
    for row in result.data["heads"]:
        head = head_of(row)
        assert row["importance"] == pytest.approx(float(expected[head.kind][head.layer, head.index]), rel=1e-4)
        assert row["standard_error"] > 0
        values.append(row["importance"])
    assert result.data["all"]["variance"] == pytest.approx(np.var(values))
    assert result.data["kinds"]["cross"]["heads"] == 4
    table = table_of(result.data, lambda row: row["importance"])
    assert [value is None for value in table["encoder_self"][0]] == [False, False, True, False]
    assert table["decoder_self"][1] == [None] * 4


def test_a_copy_of_the_checkpoint_holds_the_importance(
    subject: Subject, text: Text, uneven_checkpoint: Path, tmp_path: Path
) -> None:
    result = importance.analyse(subject, text)
    importance.save_copy(subject, result, tmp_path / "copy")
    copied, original = load_checkpoint(tmp_path / "copy"), load_checkpoint(uneven_checkpoint)
    assert copied.importance is not None
    assert original.importance is None
    assert load_subject(tmp_path / "copy", "cpu").source.digest == subject.source.digest
    assert copied.importance["encoder_self"][0, 2] == 0, "a closed head"
    best = max(result.data["heads"], key=lambda row: row["importance"])
    from_copy = RankBy(tmp_path / "copy").rank(subject, text)
    from_file = RankBy(write_result(result, tmp_path)).rank(subject, text)
    measured = RankBy().rank(subject, text)
    assert from_copy.heads == from_file.heads == measured.heads
    assert measured.heads[0] == head_of(best)
    with pytest.raises(InvalidRequestError, match="exists; choose a new path"):
        importance.save_copy(subject, result, tmp_path / "copy")
    with pytest.raises(InvalidRequestError, match="has no importance"):
        RankBy(uneven_checkpoint).rank(subject, text)


def test_importance_of_another_model_does_not_rank_this_one(subject: Subject, text: Text, tmp_path: Path) -> None:
    result = importance.analyse(subject, text)
    result.data["heads"] = [row for row in result.data["heads"] if row["kind"] != "cross"]
    with pytest.raises(InvalidRequestError, match=r"has no importance of cross\.0\.1"):
        RankBy(write_result(result, tmp_path)).rank(subject, text)
    with pytest.raises(InvalidRequestError, match="not both"):
        RankBy(tmp_path, "a b")

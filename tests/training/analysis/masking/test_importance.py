"""Importance on a corpus: equal to `hmc.training.model.importance`, and written into a copy of the checkpoint.

Other scores are saved and rank heads in the same way.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tiny import tiny_checkpoint_at
from tests.training.analysis.helpers import LAYOUT, LOSS

from hmc.artifact import InvalidRequestError, load_checkpoint, save_checkpoint
from hmc.artifact.checkpoint.extras import ScoreName
from hmc.artifact.model.heads import KINDS, HeadLayout, rank_heads
from hmc.artifact.model.importance import Importance
from hmc.training import corpus_importance, make_batch
from hmc.training.analysis import relevance
from hmc.training.analysis.attention import confidence
from hmc.training.analysis.common.result import Result, table_of, write_result
from hmc.training.analysis.common.scores import save_scores, scores_of
from hmc.training.analysis.common.subject import Subject, Text, load_subject
from hmc.training.analysis.masking import ablate, importance
from hmc.training.analysis.masking.ranking import RankBy


@pytest.mark.parametrize("words", ["sentence", "token", "batch", "token,layer", "signed", "batch,layer,signed"])
def test_importance_is_that_of_the_training_room(subject: Subject, text: Text, words: str) -> None:
    how = Importance.parse(words.split(","), "")
    result = importance.analyse(subject, text, how)
    assert result.settings["importance"] == str(how)
    ids = [tuple(subject.vocabulary.encode(side) for side in pair) for pair in text.pairs]
    batch = make_batch([s for s, _ in ids], [t for _, t in ids], subject.model.arch.pad_id)
    expected = corpus_importance(subject.model, [batch], LAYOUT, how=how)
    assert len(result.data.heads) == LAYOUT.total
    values = []
    for row in result.data.heads:
        head = row.head
        value = float(expected[head.kind][head.layer, head.index])
        assert row.importance == pytest.approx(value, rel=1e-3, abs=1e-5)
        assert how.estimator == "batch" or (row.standard_error or 0) > 0
        values.append(row.importance)
    assert result.data.all.variance == pytest.approx(np.var(values))
    assert result.data.kinds["cross"].heads == 4
    table = table_of(result.data, result.data.heads, lambda row: row.importance)
    assert [value is None for value in table["encoder_self"][0]] == [False, False, True, False]
    assert table["decoder_self"][1] == [None] * 4


def test_a_copy_of_the_checkpoint_holds_the_importance(
    subject: Subject, text: Text, uneven_checkpoint: Path, tmp_path: Path
) -> None:
    result = importance.analyse(subject, text)
    save_scores(subject, result, tmp_path / "copy")
    copied, original = load_checkpoint(tmp_path / "copy"), load_checkpoint(uneven_checkpoint)
    assert copied.importance is not None
    assert original.importance is None
    assert load_subject(tmp_path / "copy", "cpu").source.digest == subject.source.digest
    assert copied.importance["encoder_self"][0, 2] == 0, "a closed head"
    best = max(result.data.heads, key=lambda row: row.importance)
    from_copy = RankBy(tmp_path / "copy").rank(subject, text)
    from_file = RankBy(write_result(result, tmp_path)).rank(subject, text)
    measured = RankBy().rank(subject, text)
    assert from_copy.heads == from_file.heads == measured.heads
    assert measured.heads[0] == best.head
    with pytest.raises(InvalidRequestError, match="exists; choose a new path"):
        save_scores(subject, result, tmp_path / "copy")
    named = RankBy(tmp_path / "copy", name="importance").rank(subject, text)
    assert (named.heads, named.origin["by"]) == (measured.heads, "I_h")
    with pytest.raises(InvalidRequestError, match="has no importance"):
        RankBy(uneven_checkpoint).rank(subject, text)


def test_importance_of_another_model_does_not_rank_this_one(subject: Subject, text: Text, tmp_path: Path) -> None:
    result = importance.analyse(subject, text)
    result.data.heads = [row for row in result.data.heads if row.kind != "cross"]
    with pytest.raises(InvalidRequestError, match=r"has no importance of cross\.0\.1"):
        RankBy(write_result(result, tmp_path)).rank(subject, text)
    with pytest.raises(InvalidRequestError, match="not both"):
        RankBy(tmp_path, "a b")


def test_importance_of_a_pruned_checkpoint_does_not_rank_the_whole_one(
    subject: Subject, text: Text, tmp_path: Path
) -> None:
    checkpoint = subject.checkpoint
    arch, (first, *kept) = checkpoint.architecture, checkpoint.layout.heads()
    layout = HeadLayout.from_heads(kept, arch.encoder_layers, arch.decoder_layers)
    scores = {kind: np.ones((len(layout[kind]), arch.heads), np.float32) for kind in KINDS}
    pruned = tiny_checkpoint_at(tmp_path / "pruned", layout=layout, arch=arch)
    save_checkpoint(replace(pruned, importance=scores), tmp_path / "scored")
    with pytest.raises(InvalidRequestError, match=f"has no importance of {first}, which are closed in it"):
        RankBy(tmp_path / "scored", name="importance").rank(subject, text)
    ranked = RankBy(tmp_path / "scored", name="gates").rank(subject, text)  # pruning keeps log α of every head
    assert set(ranked.heads) == set(checkpoint.layout.heads())


def test_every_score_is_added_to_a_checkpoint_and_ranks_its_heads(
    text: Text, uneven_checkpoint: Path, tmp_path: Path
) -> None:
    shutil.copytree(uneven_checkpoint, tmp_path / "c")
    subject = load_subject(tmp_path / "c", "cpu")
    results: dict[ScoreName, Result[Any]] = {
        "importance": importance.analyse(subject, text, Importance(sign="signed")),
        "ablation": ablate.analyse(subject, text, LOSS),
        "relevance": relevance.analyse(subject, text, forced=True),
        "confidence": confidence.analyse(subject, text, forced=True),
    }
    orders = set()
    for name, result in results.items():
        with pytest.raises(InvalidRequestError, match=f"has no {name}; write it with `hmc analyze"):
            RankBy(name=name).rank(subject, text)
        save_scores(subject, result, tmp_path / "c")
        values = scores_of(result)
        ranked = RankBy(name=name).rank(subject, text)
        assert [values[head] for head in ranked.heads] == sorted(values.values(), reverse=True)
        assert ranked.heads == RankBy(write_result(result, tmp_path)).rank(subject, text).heads
        orders.add(ranked.heads)
    assert len(orders) == 4
    shares = scores_of(results["relevance"])  # of the logit: a layer's add up to what goes through its heads
    for row in results["relevance"].data.layers:
        there = [value for head, value in shares.items() if (head.kind, head.layer) == (row.kind, row.layer)]
        assert not there or sum(there) == pytest.approx(row.through_heads, rel=1e-4)
    with pytest.raises(InvalidRequestError, match="has the score ablation, not relevance"):
        RankBy(tmp_path / "ablate.json", name="relevance").rank(subject, text)
    gates = RankBy(name="gates").rank(subject, text)
    assert gates.heads == tuple(rank_heads(subject.checkpoint.gates or {}, subject.layout))
    partial = ablate.analyse(subject, text, LOSS, [next(iter(LAYOUT.heads()))])
    with pytest.raises(InvalidRequestError, match="have no score; measure every head"):
        save_scores(subject, partial, tmp_path / "c")

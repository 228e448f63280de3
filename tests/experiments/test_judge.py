"""Differences between translations: scores equal those of the search, and near ties are told from bugs."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiments import equality
from experiments.support import judge
from tests.tiny import SENTENCES, tiny_checkpoint_at

from hmc.artifact import Checkpoint
from hmc.artifact.tokenizer.tokenizer import open_tokenizer

BEAM, LIMIT = 4, 20


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return tiny_checkpoint_at(tmp_path / "c", seed=4)


def sources(checkpoint: Checkpoint) -> list[list[int]]:
    tokenizer = open_tokenizer(checkpoint.tokenizer)
    return [[*tokenizer.encode(s), tokenizer.eos_id] for s in SENTENCES]


def test_scores_are_those_of_the_search(checkpoint: Checkpoint) -> None:
    checkpoint.tensors["final_logits_bias"].reshape(-1)[checkpoint.architecture.eos_id] += 6  # so that some end
    given = sources(checkpoint)
    found = judge.reference_search(judge.reference_model(checkpoint), given, beam=BEAM, limit=LIMIT)
    ended = [(s, h) for s, h in zip(given, found, strict=True) if len(h.ids) < LIMIT]
    assert ended
    for source, hypothesis in ended:
        assert judge.Judge(checkpoint).score(source, hypothesis.ids) == pytest.approx(hypothesis.score, abs=1e-5)


def test_a_wrong_translation_is_no_near_tie(checkpoint: Checkpoint) -> None:
    given = sources(checkpoint)[:2]
    judging = judge.Judge(checkpoint)
    right = [
        tuple(h.ids) for h in judge.reference_search(judge.reference_model(checkpoint), given, beam=BEAM, limit=LIMIT)
    ]
    wrong = [right[0], (*right[1][:-1], right[1][-1] - 1)]
    compared = judge.compare(
        given, right, wrong, judging, lambda n, pair: judging.near_tie(given[n], pair, beam=BEAM, limit=LIMIT)
    )
    assert (compared.sentences, compared.equal) == (2, 1)
    [difference] = compared.differences
    assert difference.sentence == 1
    assert difference.near_tie is False
    assert not compared.explained
    assert "NO near tie" in str(compared)


def test_twin_tokens_are_a_near_tie(checkpoint: Checkpoint) -> None:
    """Two rows of the embedding are equal, so rounding decides which of the two tokens is written."""
    [source] = sources(checkpoint)[:1]
    [before] = judge.reference_search(judge.reference_model(checkpoint), [source], beam=1, limit=1)
    [token], twin = before.ids, 77
    assert token != twin
    for name in ("shared.weight", "final_logits_bias"):
        rows = checkpoint.tensors[name].reshape(checkpoint.architecture.vocab_size, -1)
        rows[twin] = rows[token]
    judging = judge.Judge(checkpoint)
    pair = ((token,), (twin,))
    assert judging.near_tie(source, pair, beam=1, limit=1)
    assert judging.score(source, pair[0]) == pytest.approx(judging.score(source, pair[1]))
    assert not judging.near_tie(source, ((token,), (token - 1,)), beam=1, limit=1)


def test_moved_weights_are_put_back(checkpoint: Checkpoint) -> None:
    source, judging = sources(checkpoint)[0], judge.Judge(checkpoint)
    before = judging.score(source, [5, 6])
    judging.near_tie(source, ((5,), (6,)), beam=2, limit=4)
    assert judging.score(source, [5, 6]) == before


def test_ids_that_differ_beside_other_sentences_are_counted() -> None:
    from hmc.engine.requests.results import DecodedHypothesis

    single = [DecodedHypothesis((5, 6), -0.5, True), DecodedHypothesis((7,), -0.25, True)]
    others = [DecodedHypothesis((5, 6), -0.5, True), DecodedHypothesis((8,), -0.125, True)]
    assert equality.differing(single, single)["equal"] == 2
    found = equality.differing(single, others)
    assert found["equal"] == 1
    assert found["differences"] == [{"sentence": 1, "ids": [(7,), (8,)], "scores": [-0.25, -0.125]}]

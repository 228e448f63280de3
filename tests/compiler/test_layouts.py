"""Which heads a level keeps: those of a budget by the scores asked for, or the given ones."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.tiny import random_layout

from hmc.artifact import Checkpoint, HeadLayout, InvalidRequestError, load_checkpoint, save_checkpoint
from hmc.artifact.checkpoint.checkpoint import checkpoint_digest
from hmc.artifact.checkpoint.extras import ScoreName, add_score
from hmc.artifact.model.budgets import parse_budgets
from hmc.artifact.model.heads import KINDS, AttentionKind, select_heads
from hmc.compiler import Target
from hmc.compiler.weights import choose_layout


@pytest.fixture
def ranked(tiny_checkpoint: Path) -> Checkpoint:
    """A checkpoint whose importance ranks heads in the opposite order of its gates."""
    checkpoint = load_checkpoint(tiny_checkpoint)
    assert checkpoint.gates
    return replace(checkpoint, importance={kind: np.float32(1) - checkpoint.gates[kind] for kind in KINDS})


def test_heads_are_ranked_by_what_is_asked_for(ranked: Checkpoint) -> None:
    assert ranked.gates
    assert ranked.importance
    by_gates, by_importance = (select_heads(scores, ranked.layout, 12) for scores in (ranked.gates, ranked.importance))
    assert by_gates != by_importance
    assert choose_layout(ranked, 12) == choose_layout(ranked, 12, "gates") == by_gates
    assert choose_layout(ranked, 12, "importance") == choose_layout(replace(ranked, gates=None), 12) == by_importance
    [budget] = parse_budgets("enc=3,cross=1")
    assert choose_layout(ranked, budget) == budget.select(ranked.gates, ranked.layout)
    assert choose_layout(ranked, budget, "importance") == budget.select(ranked.importance, ranked.layout)


@pytest.mark.parametrize("name", ["ablation", "relevance", "confidence"])
def test_a_checkpoint_keeps_named_scores(name: ScoreName, tiny_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_checkpoint, tmp_path / "c")
    checkpoint, rng = load_checkpoint(tmp_path / "c"), np.random.default_rng(len(name))
    scores: dict[AttentionKind, npt.NDArray[np.float32]] = {kind: rng.random((2, 4), np.float32) for kind in KINDS}
    with pytest.raises(InvalidRequestError, match=f"has no {name} to choose heads by; run `hmc analyze"):
        choose_layout(checkpoint, 12, name)
    other: ScoreName = "relevance" if name != "relevance" else "confidence"
    add_score(tmp_path / "c", checkpoint.architecture, other, checkpoint.gates or {})
    add_score(tmp_path / "c", checkpoint.architecture, name, scores)
    save_checkpoint(load_checkpoint(tmp_path / "c"), tmp_path / "again")
    for folder in ("c", "again"):
        found = load_checkpoint(tmp_path / folder)
        assert found.scores.keys() == {name, other}
        assert choose_layout(found, 12, name) == select_heads(scores, found.layout, 12)
        assert choose_layout(found, 12, other) == choose_layout(found, 12) == choose_layout(found, 12, "gates")
    assert checkpoint_digest(tmp_path / "c") == checkpoint_digest(tiny_checkpoint), "scores are not part of the model"
    with pytest.raises(InvalidRequestError, match=r"cross has shape \[1, 4\], expected \[2, 4\]: measure it again"):
        add_score(tmp_path / "c", checkpoint.architecture, name, scores | {"cross": scores["cross"][:1]})
    with pytest.raises(InvalidRequestError, match="holds NaN or infinity"):
        add_score(tmp_path / "c", checkpoint.architecture, "importance", scores | {"cross": scores["cross"] * np.nan})
    assert not [path for path in (tmp_path / "c").iterdir() if path.name.startswith(".")]


def test_nothing_is_ranked_where_all_heads_stay(ranked: Checkpoint) -> None:
    unranked = replace(ranked, gates=None, importance=None)
    everything: list[Target | None] = [None, 24, *parse_budgets("enc=8,cross=8"), unranked.layout]
    for target in everything:
        assert choose_layout(unranked, target) == unranked.layout
    some: list[Target] = [23, *parse_budgets("enc=7")]
    for fewer in some:
        with pytest.raises(
            InvalidRequestError, match=r"neither gates nor importance .* run `hmc prune` on it, or `hmc an"
        ):
            choose_layout(unranked, fewer)
    with pytest.raises(InvalidRequestError, match="has no importance to choose heads by; run `hmc analyze importance"):
        choose_layout(replace(ranked, importance=None), 3, "importance")


def test_a_given_layout_is_taken_as_it_is(ranked: Checkpoint) -> None:
    given = random_layout(ranked.architecture, seed=3)
    assert choose_layout(replace(ranked, gates=None, importance=None), given) == given


BLIND = "no head of cross-attention would stay open, so the decoder could not see the source"


def test_a_decoder_keeps_a_view_of_its_source(ranked: Checkpoint) -> None:
    best_elsewhere: dict[AttentionKind, np.ndarray] = {kind: np.ones((2, 4), np.float32) for kind in KINDS}
    best_elsewhere["cross"] -= 1
    judged = replace(ranked, gates=best_elsewhere)
    row = ((0,), (1,))
    blind: list[Target] = [0, 3, *parse_budgets("0;cross=0;enc=0,dec=0,cross=0"), HeadLayout(row, row, ((), ()))]
    for target in blind:
        with pytest.raises(InvalidRequestError, match=BLIND):
            choose_layout(judged, target)
    seeing: list[Target] = [17, *parse_budgets("enc=0,dec=0,cross=1"), HeadLayout(((), ()), ((), ()), ((), (3,)))]
    for target in seeing:
        assert any(choose_layout(judged, target).cross)
    closed = HeadLayout(row, row, ((), ())).to_json()
    without = replace(ranked, config=ranked.config.model_copy(update={"head_layout": closed}))
    with pytest.raises(InvalidRequestError, match=f"this head layout: {BLIND}"):
        choose_layout(without, None)


def test_a_given_layout_has_to_fit(ranked: Checkpoint) -> None:
    row = ((0,), (1,))
    with pytest.raises(InvalidRequestError, match="encoder_self: 3 layers, the architecture has 2"):
        choose_layout(ranked, HeadLayout(((0,),) * 3, row, row))
    with pytest.raises(InvalidRequestError, match=r"cross\.1: head 4, the architecture has 4"):
        choose_layout(ranked, HeadLayout(row, row, ((0,), (4,))))
    slim = replace(ranked, config=ranked.config.model_copy(update={"head_layout": HeadLayout(row, row, row).to_json()}))
    with pytest.raises(InvalidRequestError, match=r"heads \['encoder_self.0.1'\] are already removed"):
        choose_layout(slim, HeadLayout(((0, 1), (1,)), row, row))


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ("25", "target_heads 25: this checkpoint has 24 open heads; removed heads cannot come back"),
        ("-1", "target_heads -1: this checkpoint has 24 open heads; choose 1 to 24"),
        ("enc=9,dec=1", "target_heads enc=9,dec=1: 9 heads of encoder_self asked for, this model has 8"),
    ],
)
def test_a_budget_has_to_fit(ranked: Checkpoint, budget: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        choose_layout(ranked, parse_budgets(budget)[0])

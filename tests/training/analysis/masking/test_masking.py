"""Groups, cumulative masking and pruning profiles: the heads masked, and the scores of a trained model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.support.trained import ENGLISH, GERMAN
from tests.training.analysis.helpers import LOSS, loss_of, without

from hmc.artifact import InvalidRequestError
from hmc.training.analysis.common.measure import Settings
from hmc.training.analysis.common.records import ORDERS
from hmc.training.analysis.common.subject import Subject, Text, read_text
from hmc.training.analysis.masking import cumulative, groups, profile
from hmc.training.analysis.masking.ranking import RankBy, Ranking


def test_groups_mask_ranks_in_order(subject: Subject, text: Text) -> None:
    ranking = RankBy().rank(subject, text)
    result = groups.analyse(subject, text, ranking, LOSS, groups=5)
    rows = result.data.groups
    assert [(row.first, row.last) for row in rows] == [(1, 3), (4, 6), (7, 8), (9, 10), (11, 12)]
    assert [name for row in rows for name in row.heads] == [str(head) for head in ranking.heads]
    for row, start in zip(rows, (0, 3, 6, 8, 10), strict=True):
        part = list(ranking.heads[start : row.last])
        assert row.loss.value == pytest.approx(loss_of(subject, text, without(part)), rel=1e-5)
    with pytest.raises(InvalidRequestError, match="groups 13: there are 12 open heads to mask"):
        groups.analyse(subject, text, ranking, LOSS, groups=13)


def test_cumulative_curves_share_their_ends(subject: Subject, text: Text) -> None:
    ranking = RankBy().rank(subject, text)
    result = cumulative.analyse(subject, text, ranking, LOSS, groups=4)
    most, least = (result.data.curves[order] for order in ORDERS)
    assert [point.masked for point in most] == [point.masked for point in least] == [0, 3, 6, 9, 12]
    assert (most[0], most[-1]) == (least[0], least[-1])
    assert most[1].loss.value == pytest.approx(loss_of(subject, text, without(list(ranking.heads[:3]))), rel=1e-5)
    assert least[1].loss.value == pytest.approx(loss_of(subject, text, without(list(ranking.heads[-3:]))), rel=1e-5)
    scope = RankBy(kinds=("cross", "encoder_self")).rank(subject, text)
    assert scope.heads == tuple(head for head in ranking.heads if head.kind != "decoder_self")
    assert scope.origin == ranking.origin | {"scope": ["cross", "encoder_self"]}
    part = cumulative.analyse(subject, text, scope, LOSS, groups=2).data
    assert part.heads == len(scope.heads) < len(ranking.heads)
    for curve in part.curves.values():  # the heads of the other kind stay open
        assert curve[-1].loss.value == pytest.approx(loss_of(subject, text, without(list(scope.heads))), rel=1e-5)
    flipped = cumulative.analyse(subject, text, Ranking(ranking.heads[::-1], {}), LOSS, groups=4)
    assert flipped.data.gap["loss"] == pytest.approx(-result.data.gap["loss"])


@pytest.mark.slow
def test_important_heads_of_a_trained_model_matter_more(demo: Subject, demo_text: Text) -> None:
    """Sun et al. 2021, figures 1 and 2, in small."""
    ranking = RankBy().rank(demo, demo_text)
    settings = Settings(resamples=100)
    masked = groups.analyse(demo, demo_text, ranking, settings).data
    first, last = masked.groups[0].delta_bleu, masked.groups[-1].delta_bleu
    assert first is not None
    assert last is not None
    assert first.high < min(-10, last.low)
    curves = cumulative.analyse(demo, demo_text, ranking, settings, groups=4).data
    assert curves.gap["bleu"] > 10
    assert curves.gap["loss"] > 0


def test_profile_is_relative_to_each_checkpoints_own_bleu(demo: Subject, demo_text: Text, tmp_path: Path) -> None:
    ranking = Ranking(tuple(demo.layout.heads()), {"by": "test"})
    paths = [tmp_path / "a" / "step-1", tmp_path / "b" / "step-1"]
    text = read_text(f"{ENGLISH} {GERMAN}", ("en", "de"), sentences=6)
    result = profile.analyse(paths, lambda _: (demo, text, ranking), Settings(resamples=100), [0.25, 1.0])
    assert result.data.shares == [0.0, 0.25, 1.0]
    first, second = result.data.checkpoints
    assert [row.name for row in (first, second)] == [str(path) for path in paths], "names that are not unique"
    assert first.points == second.points
    assert [point.masked for point in first.points] == [0, 36, 144]
    whole, some, none = (point.relative for point in first.points)
    assert whole == 1
    assert some == pytest.approx(first.points[1].metric("bleu").value / first.points[0].metric("bleu").value)
    assert none is not None
    assert none < 0.2
    assert len(profile.summary(result).rows[0]) == 4


@pytest.mark.parametrize("shares", [[], [0.5, 0.2], [1.2], [-0.1, 0.5], [math.nan], [0.1, math.nan]])
def test_shares_that_make_no_sense(subject: Subject, text: Text, shares: list[float]) -> None:
    with pytest.raises(InvalidRequestError, match="give rising numbers from 0 to 1"):
        profile.analyse([Path("x")], lambda _: (subject, text, Ranking((), {})), Settings(), shares)
    with pytest.raises(InvalidRequestError, match="it needs settings with BLEU"):
        profile.analyse([Path("x")], lambda _: (subject, text, Ranking((), {})), LOSS)

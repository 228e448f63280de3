"""Correlation and comparison of results."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.training.analysis.helpers import LOSS, two_texts

from hmc.artifact import InvalidRequestError
from hmc.artifact.model.importance import Importance
from hmc.artifact.significance import Estimate
from hmc.training.analysis.across import compare, correlate
from hmc.training.analysis.common.measure import Settings
from hmc.training.analysis.common.records import CurvePoint
from hmc.training.analysis.common.result import Result, masked_within, write_result
from hmc.training.analysis.common.subject import Subject, Text
from hmc.training.analysis.masking import ablate, cumulative, groups, importance
from hmc.training.analysis.masking.ranking import RankBy


@pytest.mark.parametrize("effect", ["loss", "importance"])
def test_effects_correlate_as_their_values_do(subject: Subject, text: Text, tmp_path: Path, effect: str) -> None:
    texts = two_texts(text, tmp_path)
    result = correlate.analyse(subject, texts, effect, Settings(resamples=100))
    x, y = (np.array([getattr(row, side) for row in result.data.heads]) for side in ("first", "second"))
    assert result.data.pearson.value == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert result.data.spearman.value == pytest.approx(np.corrcoef(x.argsort().argsort(), y.argsort().argsort())[0, 1])
    if effect == "loss":
        alone = ablate.analyse(subject, texts[1], LOSS).data.heads
        assert y.tolist() == [row.delta_loss.value for row in alone]


def test_correlation_needs_two_texts_and_a_known_effect(subject: Subject, text: Text) -> None:
    for texts, effect, message in (
        ([text], "loss", "give exactly two"),
        ([text, text], "loss", "the same sentences"),
        ([text, text], "chrf", "choose one of loss, bleu, importance"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            correlate.analyse(subject, texts, effect, Settings())


def test_compare_puts_systems_side_by_side(subject: Subject, text: Text, tmp_path: Path) -> None:
    ranking = RankBy().rank(subject, text)
    result = cumulative.analyse(subject, text, ranking, LOSS, groups=4)
    files = {name: write_result(result, tmp_path / name) for name in ("baseline", "random")}
    compared = compare.analyse(compare.parse_names([str(files["baseline"]), f"Random-18={files['random']}"]))
    assert list(compared.data.systems) == ["baseline", "Random-18"]
    rows = compare.summary(compared).rows
    assert rows[0][1:] == rows[1][1:]
    assert [source.digest for source in compared.checkpoints] == [subject.source.digest] * 2


def test_what_cannot_be_compared_is_refused(subject: Subject, text: Text, tmp_path: Path) -> None:
    ranking = RankBy().rank(subject, text)

    def saved(result: Result[Any], name: str) -> Path:
        return write_result(result, tmp_path / name)

    one = saved(groups.analyse(subject, text, ranking, LOSS, groups=4), "one")
    other_size = saved(groups.analyse(subject, text, ranking, LOSS, groups=3), "size")
    other_kind = saved(importance.analyse(subject, text), "kind")
    other_text = saved(groups.analyse(subject, two_texts(text, tmp_path)[0], ranking, LOSS, groups=4), "text")
    alone = saved(ablate.analyse(subject, text, LOSS), "ablate")
    by_sentence, by_token = (
        saved(importance.analyse(subject, text, Importance(estimator=how)), how) for how in ("sentence", "token")
    )
    with pytest.raises(InvalidRequestError, match=r"different importance \(a has sentence, b has token\)"):
        compare.analyse({"a": by_sentence, "b": by_token})
    other_rank = saved(groups.analyse(subject, text, RankBy(scores=alone).rank(subject, text), LOSS, groups=4), "rank")
    tokens = saved(groups.analyse(subject, text, RankBy(scores=by_token).rank(subject, text), LOSS, groups=4), "tokens")
    for other, message in (
        (other_rank, r"different rankings \(a has I_h, b has ablation\)"),
        (tokens, r"different importance in the ranking \(a has sentence, b has token\)"),
        (other_kind, "different analyses: a is of groups, b is of importance"),
        (other_text, "on different sentences"),
        (alone, "is a result of ablate; needed is one of importance, groups, cumulative"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            compare.analyse({"a": one, "b": other})
    with pytest.raises(InvalidRequestError, match="groups of different sizes"):
        compare.analyse({"a": one, "b": other_size})
    with pytest.raises(InvalidRequestError, match="two or more"):
        compare.analyse({"a": one})
    shutil.copy(one, tmp_path / "one" / "again.json")
    with pytest.raises(InvalidRequestError, match="a name that no other argument has"):
        compare.parse_names([str(one), str(tmp_path / "one" / "again.json")])


def test_spread_of_importance_is_set_against_the_first_system(subject: Subject, text: Text, tmp_path: Path) -> None:
    """Sun et al. 2021, tables 5 and 6: half of every I_h: a quarter of the variance, the same deviation / mean."""
    first = importance.analyse(subject, text)
    half = first.model_copy(deep=True)
    values = np.array([row.importance for row in first.data.heads]) / 2
    half.data.all = importance.spread(values)
    files = {name: write_result(r, tmp_path / name) for name, r in {"baseline": first, "half": half}.items()}
    table = compare.summary(compare.analyse(files))
    place = table.columns.index("variance / baseline")
    assert [row[place] for row in table.rows] == ["1.00", "0.25"]
    unevenness = [row[table.columns.index("deviation / mean")] for row in table.rows]
    assert unevenness == [f"{values.std() / values.mean():.2f}"] * 2


@pytest.mark.parametrize(
    ("bleu", "most"),
    [([30.0, 29.5, 29.1, 28.0, 29.9], 18), ([30.0, 28.9], 0), ([30.0, 31.0, 29.0], 18), ([30.0, 28.0, 30.0], 0)],
)
def test_heads_masked_within_a_point_of_bleu(bleu: list[float], most: int) -> None:
    curve = [
        CurvePoint(masked=9 * n, loss=Estimate(0, 0, 0), bleu=Estimate(value, value, value))
        for n, value in enumerate(bleu)
    ]
    assert masked_within(curve) == most

"""NaN and infinity, in weights, in what the model computes and in files that are read: an error that says where."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.analysis.helpers import LOSS, scored_bundle

from hmc.artifact import InvalidArtifactError, InvalidRequestError, read_manifest
from hmc.artifact.bundle.manifest import write_manifest
from hmc.training.analysis import relevance
from hmc.training.analysis.across import budgets, compare, survivors, trajectory
from hmc.training.analysis.attention import confidence, maps
from hmc.training.analysis.common.decoding import translations
from hmc.training.analysis.common.measure import Settings
from hmc.training.analysis.common.result import read_result, write_result
from hmc.training.analysis.common.subject import Subject, Text, load_subject
from hmc.training.analysis.masking import ablate, importance
from hmc.training.analysis.masking.ranking import rank_by_result
from hmc.training.analysis.roles import roles

BEAMS = Settings(beam=2, resamples=100)
Analysis = Callable[[Subject, Text], object]
ANALYSES: dict[str, Analysis] = {
    "ablate": lambda subject, text: ablate.analyse(subject, text, BEAMS),
    "ablate, loss": lambda subject, text: ablate.analyse(subject, text, LOSS),
    "importance": importance.analyse,
    "confidence": confidence.analyse,
    "confidence, forced": lambda subject, text: confidence.analyse(subject, text, forced=True),
    "lrp": relevance.analyse,
    "lrp, forced": lambda subject, text: relevance.analyse(subject, text, forced=True),
    "roles": roles.analyse,
    "attention": lambda subject, text: maps.analyse(subject, text.sources[0]),
}


def with_weight(checkpoint: Path, value: float) -> Subject:
    """The checkpoint, one of its weights set to `value` in memory."""
    subject = load_subject(checkpoint, "cpu")
    with torch.no_grad():
        subject.model.decoder_layers[0].ffn.fc1.weight[0].fill_(value)
    return subject


@pytest.mark.parametrize("name", ANALYSES)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_weight_that_is_not_finite_names_checkpoint_and_tensor(
    uneven_checkpoint: Path, text: Text, name: str, value: float
) -> None:
    subject = with_weight(uneven_checkpoint, value)
    with pytest.raises(InvalidArtifactError) as caught:
        ANALYSES[name](subject, text)
    assert str(uneven_checkpoint) in str(caught.value)
    assert "tensor decoder.0.ffn.fc1.weight holds NaN or infinity" in str(caught.value)


@pytest.mark.parametrize("name", ANALYSES)
def test_weights_that_overflow_are_refused(uneven_checkpoint: Path, text: Text, name: str) -> None:
    subject = with_weight(uneven_checkpoint, 3e38)
    with pytest.raises(InvalidRequestError, match="are NaN or infinite, although all weights are finite"):
        ANALYSES[name](subject, text)


@pytest.mark.parametrize("beam", [1, 2])
def test_translations_whose_scores_overflow_are_refused(uneven_checkpoint: Path, text: Text, beam: int) -> None:
    subject = with_weight(uneven_checkpoint, 3e38)
    every = np.ones((1, subject.layout.total), bool)
    with pytest.raises(InvalidRequestError, match="the model's scores of translations are NaN or infinite"):
        translations(subject.model, subject.vocabulary, text.sources, every, beam=beam)


@pytest.fixture
def scores(subject: Subject, text: Text, tmp_path: Path) -> Path:
    """A result of `importance`, one value of which became null when it was written: it was NaN."""
    result = importance.analyse(subject, text)
    result.data.heads[3].importance = math.nan
    return write_result(result, tmp_path / "scores")


def test_a_result_that_holds_nan_is_refused(subject: Subject, uneven_checkpoint: Path, scores: Path) -> None:
    message = r"importance\.json: data\.heads\.3\.importance is not a number"
    with pytest.raises(InvalidRequestError, match=message):
        rank_by_result(subject, scores)
    with pytest.raises(InvalidRequestError, match=message):
        survivors.analyse([uneven_checkpoint], scores)
    with pytest.raises(InvalidRequestError, match=message):
        compare.analyse({"a": scores, "b": scores})
    scores.write_text(scores.read_text().replace("null", "NaN", 1))
    with pytest.raises(InvalidRequestError, match="it holds NaN, which is not a number"):
        read_result(scores)


def test_a_trajectory_with_nan_is_refused(tmp_path: Path) -> None:
    points = [{"stage": 0, "step": 1, "open": math.nan, "unsettled": 0.0}]
    (tmp_path / "trajectory.json").write_text(json.dumps(points))
    with pytest.raises(InvalidRequestError, match="with the numbers stage, step, and open or neurons"):
        trajectory.analyse({"run": tmp_path / "trajectory.json"})


def test_a_bundle_with_a_score_that_is_nan_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = scored_bundle(tiny_bundle, tmp_path / "bundle", {"full": 30.0, "h12": 28.5})
    manifest = read_manifest(bundle)
    quality = manifest.level("h12").quality
    assert quality is not None
    quality.p_value = math.nan
    write_manifest(manifest, bundle)
    with pytest.raises((InvalidRequestError, InvalidArtifactError), match="p_value"):
        budgets.analyse({"L0": bundle})

"""The claims of the experiments hold on real text. Needs the optional corpora."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from tests.experiments.conftest import Experiment
from tests.support.trained import CHECKPOINT

from hmc.artifact.storage.rows import text_lines

pytestmark = pytest.mark.slow


@pytest.fixture
def multi30k(data: Path) -> Path:
    if not (data / "multi30k").is_dir():
        pytest.skip("HMC_DATA holds no multi30k")
    return data / "multi30k"


def test_a_sentence_is_translated_the_same_in_any_batch(
    experiment: Experiment, lines: Callable[[str, list[str]], Path], multi30k: Path
) -> None:
    """At fp32 and int8, with any number of threads. At fp32 the plain search translates alike."""
    calibration = lines("calibration.en", list(islice(text_lines(multi30k / "val.en.gz"), 40)))
    ran = experiment(
        "equality", CHECKPOINT, "--source", multi30k / "test_2016_flickr.en.gz", "--calibration",
        calibration, "--sentences", "16", "--seeds", "1",
    )  # fmt: skip
    assert ran.status == 0, ran.output
    assert ran.report["sentences"] == 16
    assert all(difference["near_tie"] for difference in ran.report["reference"]["full"]["differences"])
    batching = ran.report["batching"]
    assert list(batching) == ["full", "full-int8", "full-int4"]
    assert {f["equal"] for level in batching.values() for each in level.values() for f in each.values()} == {16}


def test_a_model_from_outside_translates_as_in_transformers(experiment: Experiment, data: Path, multi30k: Path) -> None:
    for name in ("transformers", "ctranslate2"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    if not (data / "marian-en-de").is_dir():
        pytest.skip("HMC_DATA holds no marian-en-de")
    ran = experiment(
        "marian", data / "marian-en-de", "--source", multi30k / "test_2016_flickr.en.gz", "--reference",
        multi30k / "test_2016_flickr.de.gz", "--sentences", "12",
    )  # fmt: skip
    assert ran.status == 0, ran.output
    assert ran.report["imported"]["bleu"]["hmc"] == pytest.approx(
        ran.report["imported"]["bleu"]["transformers"], abs=0.1
    )
    for name in ("full", "slim"):
        for engine in ("transformers", "ctranslate2"):
            assert ran.report[name]["zero_start"][engine]["equal"] >= 11  # a near tie may fall the other way

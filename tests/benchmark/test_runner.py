"""Whole benchmarks of a real, tiny bundle."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import FEW
from tests.manifests import changed_manifest
from tests.support.files import write_lines

from hmc.artifact import InvalidArtifactError, InvalidRequestError, validate
from hmc.artifact.errors import LevelNotFoundError
from hmc.benchmark import BenchmarkSettings, Report, record, run_benchmark
from hmc.benchmark.report.results import uncertain
from hmc.benchmark.report.tables import advice
from hmc.benchmark.runner import check_recordable


def settings(bundle: Path, src: Path, ref: Path | None, **changed: Any) -> BenchmarkSettings:
    small = {"batches": (1, 2), "beams": (1, 2), "rounds": 2, "threads": 1, "latency_limit": 2, "memory": False}
    return BenchmarkSettings(bundle=bundle, src=src, ref=ref, **{**small, **changed})


def test_all_levels(tiny_bundle: Path, src: Path, ref: Path) -> None:
    said: list[str] = []
    steps: list[str] = []
    expected: list[int] = []
    asked = settings(tiny_bundle, src, ref)
    report = run_benchmark(asked, say=said.append, progress=steps.append, expect=expected.append)
    assert expected == [len(steps)]
    manifest = validate(tiny_bundle)
    assert said[0] == report.contract
    assert said[1:] == ["\n".join(uncertain(report))]
    assert [level.name for level in report.levels] == [level.name for level in manifest.levels]
    assert report.bundle.version == manifest.version
    for level in report.levels:
        assert [(r.batch, r.beam, r.requests) for r in level.latency] == [(1, 1, 4), (1, 2, 4), (2, 1, 2), (2, 2, 2)]
        assert [(q.beam, q.sentences, q.reference_level) for q in level.quality] == [(1, 4, "full"), (2, 4, "full")]
        assert level.memory is None
        assert level.device == "cpu"
    assert [r.ratio for r in report.levels[0].latency] == [1, 1, 1, 1]
    assert json.loads(report.to_json())["conditions"]["test_set"] == "set"
    assert "h5: quality at beam 2" in steps


def test_quality_and_times_have_one_reference_which_is_measured(tiny_bundle: Path, src: Path, ref: Path) -> None:
    report = run_benchmark(settings(tiny_bundle, src, ref, levels=("h5", "h12"), limit=2, memory=True))
    assert [level.name for level in report.levels] == ["full", "h5", "h12"]
    assert {level.quality[0].reference_level for level in report.levels} == {"full"}
    assert report.levels[0].quality[0].sentences == 2
    assert report.conditions.latency_reference == report.conditions.quality_reference == "full"
    assert report.levels[0].quality[0].bleu_delta == 0
    assert report.levels[0].latency[0].ratio == 1
    assert "divided by full's," in report.contract
    assert "ΔBLEU is against full," in report.contract
    assert report.levels[0].memory is not None


@pytest.mark.usefixtures("no_cuda")
def test_the_reference_is_a_level_that_runs_here(tiny_bundle: Path, tmp_path: Path, src: Path, ref: Path) -> None:
    """The first level is in fp16, as `--precision fp16,int8` writes it, and there is no CUDA device."""
    bundle = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, bundle)
    with changed_manifest(bundle) as raw:
        assert raw["levels"][0]["name"] == "full"
        raw["levels"][0]["precision"] = "fp16"
    report = run_benchmark(settings(bundle, src, ref, batches=(1,), beams=(1,), rounds=1))
    assert report.conditions.left_out == ("full",)
    assert {level.quality[0].reference_level for level in report.levels} == {"full-int8"}
    assert report.conditions.latency_reference == "full-int8"


def test_sentences_that_fill_no_request_are_not_called_timed(tiny_bundle: Path, src: Path) -> None:
    report = run_benchmark(settings(tiny_bundle, src, None, levels=("h5",), batches=(3,), latency_limit=4))
    conditions = report.to_dict()["conditions"]
    assert (conditions["timed_sentences"], conditions["timed_at_batch"], conditions["batches"]) == (3, (3,), (3,))
    assert "each translates the same 3 sentences" in report.contract


def test_default_batches_are_cut_to_a_small_test_set(tiny_bundle: Path, src: Path) -> None:
    report = run_benchmark(settings(tiny_bundle, src, None, levels=("h5",), batches=None, latency_limit=128))
    assert report.conditions.batches == (1, 4)
    assert [(r.batch, r.requests) for r in report.levels[0].latency] == [(1, 8), (1, 8), (4, 2), (4, 2)]


def test_recording(tiny_bundle: Path, tmp_path: Path, src: Path, ref: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, bundle)
    before = validate(bundle)
    chosen = settings(bundle, src, ref, levels=("full", "h5"))
    report = run_benchmark(chosen)
    record(bundle, report)
    after = validate(bundle)
    assert after.version == before.version
    recorded = after.level("h5")
    assert recorded.quality == report.levels[1].quality_at(2)
    assert recorded.latency == report.recorded_latency(report.levels[1])
    assert recorded.latency is not None
    assert (recorded.latency.batch, recorded.latency.beam) == (1, 2)
    assert after.level("h12").latency is None
    record(bundle, run_benchmark(settings(bundle, src, None, levels=("h5",))))
    assert validate(bundle).level("h5").quality == recorded.quality, "no references: the old quality stays"


def test_a_recorded_quality_is_replaced_by_no_lesser_one(
    tiny_bundle: Path, tmp_path: Path, src: Path, ref: Path
) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, bundle)
    both = {"batches": (1,), "rounds": 1, "levels": ("full", "h5")}
    record(bundle, run_benchmark(settings(bundle, src, ref, **both)))
    before = (bundle / "bundle.json").read_bytes()
    for lesser, said in (({"limit": 2}, "and 2 at beam 2"), ({"beams": (1,)}, "and 4 at beam 1")):
        chosen = settings(bundle, src, ref, **both | lesser)
        report = run_benchmark(chosen)
        for refused in (lambda report=report: record(bundle, report), lambda chosen=chosen: check_recordable(chosen)):
            message = (
                f"the quality of full on 4 sentences at beam 2, {said} would replace it: measure as many with beam 2"
            )
            with pytest.raises(InvalidRequestError, match=message):
                refused()
    assert (bundle / "bundle.json").read_bytes() == before
    check_recordable(settings(bundle, src, None, **both | {"limit": 2}))  # without references no quality is recorded
    record(bundle, run_benchmark(settings(bundle, src, ref, **both | {"beams": (1, 2)})))


def test_what_the_bundle_records_on_more_sentences_is_in_the_report(
    tiny_bundle: Path, tmp_path: Path, src: Path, ref: Path
) -> None:
    """These scores decide, as they would stay with --record; if they are of every level that was measured."""
    bundle = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, bundle)
    both = {"batches": (1,), "rounds": 1, "levels": ("full", "h5")}
    report = run_benchmark(settings(bundle, src, ref, **both))
    assert [level.recorded for level in report.levels] == [None, None]
    manifest = record(bundle, report)
    kept = [manifest.level(name).quality for name in ("full", "h5")]
    for references, fewer in ((ref, {"limit": 2}), (None, {})):
        again = run_benchmark(settings(bundle, src, references, **both | fewer))
        assert [level.recorded for level in again.levels] == kept
        assert [level.quality for level in again.described_levels()] == kept
        (tmp_path / "report.json").write_text(again.to_json(), encoding="utf-8")
        assert Report.read(tmp_path / "report.json").levels == again.levels
        assert (advice(again) or "").endswith("BLEU as it was recorded, on 4 sentences of set.")
    as_many = run_benchmark(settings(bundle, src, ref, **both))
    one_more = run_benchmark(settings(bundle, src, ref, **both | {"limit": 2, "levels": ("full", "h5", "h12")}))
    assert not any(level.recorded for level in as_many.levels + one_more.levels)


def test_what_cannot_be_measured_is_refused_before_anything_is(
    tiny_bundle: Path, tmp_path: Path, src: Path, ref: Path
) -> None:
    said: list[str] = []
    ref.write_text("Nur eine Zeile.\n", encoding="utf-8")
    with pytest.raises(InvalidRequestError, match=r"set\.en has 4 lines and .*set\.de has 1"):
        run_benchmark(settings(tiny_bundle, src, ref), say=said.append)
    with pytest.raises(InvalidRequestError, match="batch 5: only 4 sentences are timed"):
        run_benchmark(settings(tiny_bundle, src, None, batches=(5,), latency_limit=9), say=said.append)
    write_lines(ref, list(FEW.values()))
    with pytest.raises(InvalidRequestError, match="1 sentence pair, and the significance of a BLEU difference needs 2"):
        run_benchmark(settings(tiny_bundle, src, ref, limit=1, batches=(1,)), say=said.append)
    with pytest.raises(LevelNotFoundError, match="unknown level 'h9'"):
        run_benchmark(settings(tiny_bundle, src, None, levels=("h9",)), say=said.append)
    with pytest.raises(InvalidArtifactError, match=r"bundle\.json is missing"):
        run_benchmark(settings(tmp_path, src, None), say=said.append)
    assert said == []

"""Every experiment runs to its end on a tiny model, and its report is as expected."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from experiments import sizes
from tests.artifact.marian.opus import GERMAN, edit, opus_directory
from tests.experiments.conftest import Experiment
from tests.processes import REPOSITORY, environment
from tests.tiny import SENTENCES, tiny_architecture, tiny_checkpoint_at

Lines = Callable[[str, list[str]], Path]
PEERS = ("transformers", "ctranslate2")
CORES = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
WORKERS = f" {CORES} workers" if CORES > 1 else ""
pytestmark = pytest.mark.slow


@pytest.fixture
def peers() -> None:
    for name in PEERS:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


def test_equality_of_a_checkpoint(experiment: Experiment, lines: Lines, tiny_checkpoint: Path) -> None:
    ran = experiment(
        "equality", tiny_checkpoint, "--source", lines("s.en", SENTENCES), "--sentences", "5", "--heads", "12",
        "--max-length", "16", "--seeds", "1", "--threads", "1,2",
    )  # fmt: skip
    assert ran.status == 0, ran.output
    assert {name: found["equal"] for name, found in ran.report["reference"].items()} == {"full": 5, "h12": 5}
    assert list(ran.report["batching"]) == ["full", "full-int8", "full-int4", "h12", "h12-int8", "h12-int4"]
    for by_threads in ran.report["batching"].values():
        assert list(by_threads["1"]) == ["batches of 32", "random arrivals 0"]
        assert list(by_threads["2"]) == ["batches of 32", "random arrivals 0", "alone with 1 thread(s)"]
        assert {found["equal"] for each in by_threads.values() for found in each.values()} == {5}


def test_equality_of_a_bundle_has_no_reference(experiment: Experiment, lines: Lines, tiny_bundle: Path) -> None:
    ran = experiment(
        "equality", tiny_bundle, "--source", lines("s.en", SENTENCES), "--sentences", "3", "--max-length", "12",
        "--seeds", "1", "--threads", "1",
    )  # fmt: skip
    assert ran.status == 0, ran.output
    assert "give a checkpoint" in ran.output
    assert "reference" not in ran.report
    assert len(ran.report["batching"]) == 6


def test_a_missing_file_is_one_line(tiny_bundle: Path, tmp_path: Path) -> None:
    """In a process of its own, as a developer runs it."""
    absent = str(tmp_path / "absent.en")
    command = [sys.executable, "-m", "experiments.equality", str(tiny_bundle), "--source", absent]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), cwd=REPOSITORY)
    assert ran.returncode == 1
    message = "no such file (paths are relative to the working directory)"
    assert (ran.stdout + ran.stderr).splitlines()[-1] == f"error: {tmp_path / 'absent.en'}: {message}"


@pytest.mark.usefixtures("peers")
def test_marian_model_in_all_engines(experiment: Experiment, lines: Lines, tmp_path: Path) -> None:
    arch = opus_directory(tmp_path / "opus")
    edit(tmp_path / "opus" / "config.json", num_beams=None)
    settings = {"decoder_start_token_id": arch.pad_id, "pad_token_id": arch.pad_id, "eos_token_id": arch.eos_id}
    unlike_ours = {"no_repeat_ngram_size": None, "forced_eos_token_id": None, "max_length": 24}
    edit(tmp_path / "opus" / "generation_config.json", **settings, **unlike_ours)
    count = len(GERMAN)
    ran = experiment(
        "marian", tmp_path / "opus", "--source", lines("s.en", SENTENCES[:count]), "--reference",
        lines("s.de", GERMAN), "--heads", "13",
    )  # fmt: skip
    assert ran.status == 0, ran.output
    imported = ran.report["imported"]
    assert (imported["texts_equal"], imported["tokenized_equal"], imported["ids"]["equal"]) == (count, count, count)
    assert imported["bleu"]["hmc"] == imported["bleu"]["transformers"]
    for name, heads in (("full", 24), ("slim", 13)):
        found = ran.report[name]
        assert found["heads"] == heads
        for start in ("as_it_is", "zero_start"):  # this directory starts from zeros as it is
            assert {engine: f["equal"] for engine, f in found[start].items()} == {
                "transformers": count, "ctranslate2": count
            }  # fmt: skip


@pytest.mark.usefixtures("peers")
def test_sizes_of_a_small_model(experiment: Experiment, tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "out" / "base" / "checkpoint", arch=tiny_architecture(d_model=64), seed=4)
    ran = experiment(
        "sizes", "--out", tmp_path / "out", "--sizes", "base", "--settings", "3x1,2x4", "--rounds", "1",
        "--source", "8", "--target", "9", "--peers", "ctranslate2,transformers", "--pause", "0",
    )  # fmt: skip
    assert ran.status == 0, ran.output
    settings = ran.report["sizes"]["base"]
    assert list(settings) == ["3x1", "2x4"]
    for found in settings.values():
        peers = {name: share for name, share in found["agreement"].items() if "fp32" in name}
        assert peers == {f"ct2 fp32 {CORES} threads": 1, f"ct2 fp32 {CORES} workers": 1, "transformers fp32": 1}
        assert set(found["milliseconds"]) == set(found["agreement"])
        rivals = [name.split(" against ") for name in found["ratios"]]
        assert {own for own, rival in rivals if rival == "transformers fp32"} == {
            "hmc full", "hmc full-int8", "hmc full-int4", "hmc h6", "hmc h6-int8", "hmc h6-int4",
            *(f"hmc {level}{WORKERS}" for level in ("full", "full-int8", "h6", "h6-int8")),
        }  # fmt: skip
        assert {own for own, rival in rivals if rival.startswith("ct2 int8")} == {
            f"hmc {level}{rest}" for level in ("full", "h6") for rest in ("-int8", f"-int8{WORKERS}", "-int4")
        }


def test_ratios_are_to_the_better_setting_and_to_the_defaults() -> None:
    defaults, workers = f"ct2 int8 {CORES} threads", "ct2 int8 other workers"
    times = {"hmc full-int8": [1.0, 2.0], "hmc full-int8 2 workers": [2.0, 2.0], "hmc full": [1.0, 1.0]}
    found = sizes.ratios(times | {defaults: [6.0, 6.0], workers: [4.0, 4.0], "optimum fp32": [9.0, 9.0]})
    assert {name: middle for name, (middle, _, _) in found.items()} == {
        f"hmc full-int8 against {workers}": 3.0, f"hmc full-int8 2 workers against {workers}": 2.0,
        f"hmc full-int8 against {defaults}": 4.5, "hmc full against optimum fp32": 9.0,
        "hmc full-int8 against optimum fp32": 6.75, "hmc full-int8 2 workers against optimum fp32": 4.5,
    }  # fmt: skip
    assert f"hmc full-int8 against {defaults}" in sizes.ratios(times | {defaults: [1.0, 1.0]})


@pytest.mark.skipif(importlib.util.find_spec("optimum") is not None, reason="Optimum is installed")
def test_an_absent_peer_says_what_to_do(experiment: Experiment, tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "out" / "base" / "checkpoint", arch=tiny_architecture(d_model=64))
    ran = experiment("sizes", "--out", tmp_path / "out", "--sizes", "base", "--settings", "1x1", "--peers", "optimum")
    assert ran.status == 1
    assert "--optimum-python" in ran.output
    assert "Traceback" not in ran.output
    ran = experiment("sizes", "--out", tmp_path / "out", "--peers", "ctranslate3")
    assert "choose of ctranslate2, transformers, optimum" in ran.output


@pytest.mark.usefixtures("peers")
def test_training_cost_of_a_small_model(experiment: Experiment, lines: Lines, tmp_path: Path) -> None:
    english = lines("t.en", SENTENCES * 2)
    german = lines("t.de", [s.upper() for s in SENTENCES * 2])
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        f"""
[data]
train = [{json.dumps(f"{english} {german}")}]
dev = {json.dumps(f"{english} {german}")}
max_length = 64
[tokenizer]
vocab_size = 120
[model]
d_model = 32
ffn_dim = 48
encoder_layers = 1
decoder_layers = 1
heads = 4
max_positions = 64
[train]
batch_tokens = 512
"""
    )
    ran = experiment(
        "training_cost", "--recipe", recipe, "--out", tmp_path / "out", "--rounds", "2", "--steps", "2", "--masked",
        "3", "--threads", "1",
    )  # fmt: skip
    assert ran.status == 0, ran.output
    assert {name: about["threads"] for name, about in ran.report["processes"].items()} == {"hmc": 1, "transformers": 1}
    variants = {"plain", "gates", "random", "important", "importance", "MarianMTModel sdpa", "MarianMTModel eager"}
    for precision in ("bf16-mixed", "32-true"):
        found = ran.report["precisions"][precision]
        assert set(found["variants"]) == variants
        assert all(len(row["seconds"]) == 2 for row in found["variants"].values())
        assert all(row["last"] > 0 for row in found["variants"].values())
        assert {title.split()[0] for title in found["time_ratios"]} == {
            "gates", "random", "important", "importance", "MarianMTModel",
        }  # fmt: skip


def test_calls_beside_streams(experiment: Experiment, lines: Lines, tiny_bundle: Path) -> None:
    ran = experiment(
        "load.mixed", tiny_bundle, "--source", lines("s.en", SENTENCES), "--calls", "6", "--every", "0.05",
        "--rounds", "1", "--beam", "1", "--serve-with", "max-rows=8", "queue-size=16",
    )  # fmt: skip
    assert ran.status == 0, ran.output
    assert {name: len(seconds) for name, seconds in ran.report["seconds"].items()} == {"quiet": 6, "busy": 6}
    assert all(rate > 0 for rates in ran.report["texts_a_second"].values() for rate in rates)

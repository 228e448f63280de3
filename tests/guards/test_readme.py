"""The README: its targets of make exist, and its chain from text to a served level runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.cli.test_serve import serving
from tests.guards.pages import README, calls_of, steps
from tests.processes import REPOSITORY, environment
from tests.tiny import SENTENCES
from typer.testing import CliRunner

from hmc.artifact import validate
from hmc.cli.main import build


@pytest.mark.parametrize("command", ["demo", "test"])
def test_readme_gives_the_command(repository: Path, command: str) -> None:
    assert f"make {command}" in (repository / "README.md").read_text(encoding="utf-8")
    assert f"\n{command}:" in (repository / "Makefile").read_text(encoding="utf-8")


def recipes(repository: Path, venv: Path, *goals: str) -> str:
    """The commands that make would run for a new environment at `venv`."""
    (venv / "bin").mkdir(parents=True, exist_ok=True)
    (venv / "bin" / "python").touch()
    command = ["make", "--dry-run", "--no-print-directory", "-C", str(repository), f"VENV={venv}", "GPU=", *goals]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment()).stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_demo_installs_quietly_and_without_cuda_where_there_is_no_gpu(repository: Path, tmp_path: Path) -> None:
    said = recipes(repository, tmp_path, "demo")
    assert re.search(r"HEADMASK_RUNTIME=cpu \S+ -m pip .*install --quiet -e '\.\[demo\]'", said)
    assert "HEADMASK_RUNTIME=gpu" in recipes(repository, tmp_path, "RUNTIME=gpu", "demo")
    (tmp_path / ".dev-ready").touch()
    assert "HEADMASK_RUNTIME=cpu" not in recipes(repository, tmp_path, "demo"), "the tests' environment has the other"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_small_pytorch_is_named_before_the_large_one_is_downloaded(repository: Path, tmp_path: Path) -> None:
    said = recipes(repository, tmp_path, "test")
    assert "TORCH_PIP_ARGS='--index-url https://download.pytorch.org/whl/cpu' test" in said
    assert said.index("TORCH_PIP_ARGS") < said.index("install --no-compile torch")
    assert "several gigabytes" not in recipes(repository, tmp_path, "TORCH_PIP_ARGS=--pre", "test")


QUICK = {
    "train": [
        "--set", "tokenizer.vocab_size=120", "--set", "model.d_model=96", "--set", "model.ffn_dim=32",
        "--set", "model.encoder_layers=1", "--set", "model.decoder_layers=1", "--set", "model.heads=48",
        "--set", "train.steps=4", "--set", "train.batch_tokens=512", "--set", "train.warmup_steps=2",
        "--set", "train.cooldown_steps=2", "--set", "run.eval_every=4", "--set", "run.eval_sentences=2",
        "--set", "run.precision=32-true", "--set", "run.device=cpu",
    ],
    "prune": [
        "--close-steps", "10", "--recover-steps", "2", "--batch-tokens", "512", "--eval-sentences", "2",
        "--device", "cpu",
    ],
    "compile": ["--beam", "1"],
    "bench": ["--batch", "1", "--beam", "1", "--rounds", "1", "--latency-limit", "2", "--no-memory", "--device", "cpu"],
}  # fmt: skip
"""Command of the README → options that replace its settings by tiny ones. There are 144 heads, as in the README."""


@pytest.mark.slow
def test_the_chain_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From text to a served level: every command of that section, in its order, on a small text of each name."""
    section = [step for step in steps(README) if step.section == "From text to a served level"]
    calls = [words for step in section for program, words in calls_of(step) if program == "hmc"]
    assert [words[0] for words in calls] == ["train", "prune", "compile", "serve", "translate", "bench"]
    by_name = {words[0]: words for words in calls}
    for name in ("train", "val", "test"):
        lines = SENTENCES * 2 if name == "train" else SENTENCES[:4]
        (tmp_path / f"{name}.en").write_text("".join(f"{line}\n" for line in lines))
        (tmp_path / f"{name}.de").write_text("".join(f"{line.upper()}\n" for line in lines))
    (tmp_path / "recipes").symlink_to(REPOSITORY / "recipes")
    monkeypatch.chdir(tmp_path)

    def run(words: list[str]) -> str:
        ran = CliRunner().invoke(build(), [*words, *QUICK.get(words[0], [])])
        assert ran.exit_code == 0, ran.output
        return ran.stdout

    for name in ("train", "prune", "compile"):
        run(by_name[name])
    manifest = validate(tmp_path / "bundle")
    assert [level.name for level in manifest.levels if level.precision == "fp32"] == ["full", "h72", "h36"]
    assert all(level.quality for level in manifest.levels)
    with serving(*by_name["serve"][1:], "--device", "cpu") as (_, said):
        answered = run([str(said["address"]) if w == "localhost:50051" else w for w in by_name["translate"]])
    assert answered.count("\n") == 1  # the line may be empty: the model saw four updates
    run(by_name["bench"])
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["levels"]

"""Where the disk is full, results are printed, what was there stays, and the error says where."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.benchmark import fakes
from tests.cli.conftest import Hmc
from tests.command import done, refused
from tests.support.files import write_lines, write_pair
from tests.tiny import SENTENCES, tiny_checkpoint_at

from hmc.artifact import load_checkpoint
from hmc.benchmark import runner
from hmc.cli import demo_steps

FULL = "No space left on device; make room"


def fill(disk: Path, leave: int = 0) -> None:
    """Leaves so many bytes of a file system."""
    room = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(room.f_bavail * room.f_frsize - leave))


@pytest.mark.parametrize("option", ["--out", "--html"])
def test_a_report(
    hmc: Hmc, tiny_bundle: Path, src: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr(runner, "run_benchmark", lambda *_, **__: fakes.whole_report())
    (small_disk / "report").write_text("former")
    fill(small_disk)
    ran = hmc("bench", tiny_bundle, "--source", src, "--levels", "full", option, small_disk / "report")
    refused(ran, f"{small_disk / 'report'}: {FULL}")
    assert "Latency of a request" in ran.stdout
    assert (small_disk / "report").read_text() == "former"
    assert {path.name for path in small_disk.iterdir()} == {"report", "filler"}


def test_the_plot_of_a_report(
    hmc: Hmc, tiny_bundle: Path, src: Path, ref: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "run_benchmark", lambda *_, **__: fakes.whole_report())
    (small_disk / "plot.svg").write_text("former")
    fill(small_disk)
    ran = hmc("bench", tiny_bundle, "--source", src, "--reference", ref, "--plot", small_disk / "plot.svg")
    refused(ran, f"{small_disk / 'plot.svg'}: {FULL}")
    assert (small_disk / "plot.svg").read_text() == "former"


def test_the_demo(
    hmc: Hmc, tiny_checkpoint: Path, tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_steps, "SIZE", demo_steps.Size(sentences=4, timed=2, rounds=1))
    monkeypatch.setattr(demo_steps, "HEADS", (12,))
    monkeypatch.setattr(demo_steps, "PEER", "no_such_engine")
    (small_disk / "results.json").write_text("former")
    (tmp_path / "out").mkdir()
    plain = demo_steps.Demo.draw

    def plot(demo: demo_steps.Demo, found: object) -> Path:
        path = plain(demo, found)  # type: ignore[arg-type]
        (tmp_path / "out" / "results.json").symlink_to(small_disk / "results.json")
        fill(small_disk)
        return path

    monkeypatch.setattr(demo_steps.Demo, "draw", plot)
    ran = hmc("demo", "--checkpoint", tiny_checkpoint, "-o", tmp_path / "out")
    refused(ran, f"{tmp_path / 'out' / 'results.json'}: {FULL}")
    assert "BLEU" in ran.stdout
    assert (small_disk / "results.json").read_text() == "former"


def test_a_file_of_lines(hmc: Hmc, tiny_bundle: Path, tmp_path: Path, small_disk: Path) -> None:
    source = write_lines(tmp_path / "in.txt", ["A dog runs."] * 5)
    fill(small_disk, 4096)  # for the state of the run
    arguments = ("translate", "--bundle", tiny_bundle, "--source", source, "--max-length", "8")
    refused(hmc(*arguments, "-o", small_disk / "out.txt"), f"{small_disk / 'out.txt'}: {FULL}")
    (small_disk / "filler").unlink()
    assert hmc(*arguments, "-o", small_disk / "out.txt").exit_code == 0
    assert len((small_disk / "out.txt").read_text().splitlines()) == 5


def test_a_corpus(hmc: Hmc, tiny_bundle: Path, tmp_path: Path, small_disk: Path) -> None:
    source = write_lines(tmp_path / "in.txt", ["A dog runs."] * 5)
    fill(small_disk)
    arguments = ("translate", "--bundle", tiny_bundle, "--engine", "local", "--source", source, "--max-length", "8")
    ran = refused(hmc(*arguments, "-o", small_disk / "out"), FULL)
    assert ran.stderr.splitlines()[-1].startswith(f"hmc: {small_disk / 'out'}")
    (small_disk / "filler").unlink()
    assert hmc(*arguments, "-o", small_disk / "out").exit_code == 0


def test_a_bundle(hmc: Hmc, tiny_checkpoint: Path, small_disk: Path) -> None:
    ran = refused(hmc("compile", tiny_checkpoint, "-o", small_disk / "bundle"), FULL)
    assert f"hmc: {small_disk / 'bundle'}" in ran.stderr
    assert list(small_disk.iterdir()) == []


TOML = """
[data]
train = ["{corpus}"]
dev = "{corpus}"
[tokenizer]
vocab_size = 120
[model]
d_model = 16
ffn_dim = 16
encoder_layers = 1
decoder_layers = 1
heads = 2
[train]
steps = 6
batch_tokens = 400
warmup_steps = 2
[run]
device = "cpu"
eval_sentences = 1
save_every = 2
"""


@pytest.mark.parametrize("command", ["train", "prune"])
def test_a_run(hmc: Hmc, tmp_path: Path, small_disk: Path, command: str) -> None:
    """Wherever the room ends, the message names a path, and the same command goes on to the same result."""
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    corpus, words = write_pair(tmp_path, SENTENCES * 2), list[str | Path]()
    if command == "train":
        (tmp_path / "r.toml").write_text(TOML.format(corpus=corpus))
        words += ["train", tmp_path / "r.toml"]
    else:
        tiny_checkpoint_at(tmp_path / "c", gates=False)
        words += ["prune", tmp_path / "c", "--data", corpus, "--dev", corpus, "--target-heads", "12"]
        words += ["--close-steps", "10", "--recover-steps", "4", "--save-every", "4", "--eval-sentences", "1"]
        words += ["--device", "cpu"]
    done(hmc(*words, "-o", tmp_path / "roomy"))
    failed = 0
    for leave in range(0, 4_000_000, 150_000):
        fill(small_disk, leave)
        ran = hmc(*words, "-o", small_disk / "out")
        (small_disk / "filler").unlink()
        if ran.exit_code == 0:
            break
        failed += 1
        last = refused(ran, FULL).stderr.splitlines()[-1]
        assert str(small_disk) in last
        assert "Traceback" not in ran.stderr
    assert failed > 2
    result = "final" if command == "train" else "h12"
    here, there = (load_checkpoint(folder / result) for folder in (small_disk / "out", tmp_path / "roomy"))
    assert all(np.array_equal(here.tensors[name], values) for name, values in there.tensors.items())

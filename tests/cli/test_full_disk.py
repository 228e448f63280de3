"""Where the disk is full, results are printed, what was there stays, and the error says where."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.benchmark import fakes
from tests.cli.conftest import Hmc
from tests.command import refused
from tests.support.files import write_lines

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
    (small_disk / "plot.png").write_text("former")
    fill(small_disk)
    ran = hmc("bench", tiny_bundle, "--source", src, "--reference", ref, "--plot", small_disk / "plot")
    refused(ran, f"{small_disk / 'plot.png'}: {FULL}")
    assert (small_disk / "plot.png").read_text() == "former"


def test_the_demo(
    hmc: Hmc, tiny_checkpoint: Path, tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_steps, "SIZE", demo_steps.Size(sentences=4, timed=2, rounds=1))
    monkeypatch.setattr(demo_steps, "HEADS", (12,))
    monkeypatch.setattr(demo_steps, "PEER", "no_such_engine")
    (small_disk / "results.json").write_text("former")
    (tmp_path / "out").mkdir()
    plain = demo_steps.Demo.plot

    def plot(demo: demo_steps.Demo, report: object) -> list[Path]:
        paths = plain(demo, report)  # type: ignore[arg-type]
        (tmp_path / "out" / "results.json").symlink_to(small_disk / "results.json")
        fill(small_disk)
        return paths

    monkeypatch.setattr(demo_steps.Demo, "plot", plot)
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

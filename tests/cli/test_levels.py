"""`hmc levels`: the levels of a bundle and of a server, with their bytes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.conftest import Hmc
from tests.command import done, refused
from tests.manifests import changed_manifest
from tests.serving.fakes import FactoryOnDevices, FakeFactory

from hmc.artifact import read_manifest
from hmc.artifact.bundle.manifest import write_manifest
from hmc.engine.native import library
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings


def test_bytes_of_a_bundle_are_told_apart(hmc: Hmc, tiny_bundle: Path) -> None:
    levels = {level["name"]: level for level in json.loads(hmc("levels", tiny_bundle, "--json").stdout)["levels"]}
    for level in read_manifest(tiny_bundle).levels:
        reported = levels[level.name]
        assert reported["disk"]["own"] + reported["disk"]["shared"] == reported["bytes"] == level.bytes
        assert reported["disk"]["own"] > 0
        assert reported["disk"]["shared"] > 0
        assert reported["memory"] is None
    table = hmc("levels", tiny_bundle).stdout
    assert "in memory" not in table
    disk = levels["full"]["disk"]
    assert f"{disk['own'] / 2**20:.1f} + {disk['shared'] / 2**20:.1f}" in table


def test_bytes_of_a_server(hmc: Hmc, server: BackgroundServer) -> None:
    with Client(server.address) as client:
        client.unload_level("h12")
    reported = json.loads(hmc("levels", "--server", server.address, "--json").stdout)
    assert reported["memory_bytes"] > 2**20
    memory = {level["name"]: level["memory"] for level in reported["levels"]}
    assert memory == {"full": {"own": 40, "shared": 100}, "h12": None, "h6": {"own": 20, "shared": 100}}
    table = hmc("levels", "--server", server.address).stdout
    assert "MiB in memory" in table
    assert "The server's process has" in table


def test_recorded_times_stay_when_a_server_has_answered(hmc: Hmc, fake_bundle: Path, factory: FakeFactory) -> None:
    with changed_manifest(fake_bundle) as raw:
        raw["levels"][0]["latency"] = {
            "p50_ms": 111.1, "p95_ms": 122.2, "p99_ms": 133.3, "batch": 1, "beam": 4, "requests": 9, "machine": "m",
        }  # fmt: skip
    with BackgroundServer(fake_bundle, ServerSettings(port=0), factory) as running:
        before = hmc("levels", "--server", running.address).stdout
        with Client(running.address) as client:
            client.translate(["a"])
        after = hmc("levels", "--server", running.address).stdout
    for table in (before, after):
        assert "111.1" in table
        assert "122.2" in table
        assert "requests of 1 at beam 4 on m" in table
    assert "live p50 ms" not in before
    assert "live p50 ms" in after
    assert "live calls" in after


def test_bytes_of_devices(hmc: Hmc, fake_bundle: Path) -> None:
    with BackgroundServer(fake_bundle, ServerSettings(port=0), FactoryOnDevices()) as running:
        table = hmc("levels", "--server", running.address).stdout
    assert "MiB on GPU" in table
    assert "3.0 + 2.0" in table
    assert "on cuda:0,cuda:1" in table
    assert "cuda:0: weights and caches have 5 of at most 80 MiB; 90 MiB are free." in table
    assert "cuda:1: weights and caches have 0 MiB." in table


def test_a_bundle_that_lacks_a_file_names_it(hmc: Hmc, fake_bundle: Path) -> None:
    (fake_bundle / "full" / "decoder.onnx").unlink()
    ran = refused(hmc("levels", fake_bundle), "full/decoder.onnx is missing")
    assert "Traceback" not in ran.stderr


def test_what_cannot_be_compared_is_told(hmc: Hmc, tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, bundle)

    def record(level: str, lines: int, batch: str) -> None:
        for name in ("a.en", "a.de"):
            (tmp_path / name).write_text("A man runs.\n" * lines)
        files = ("--source", tmp_path / "a.en", "--reference", tmp_path / "a.de")
        few = ("--beam", "1", "--rounds", "1", "--threads", "1", "--no-memory")
        done(hmc("bench", bundle, *files, "--levels", level, "--batch", batch, *few, "--record"))

    def reported() -> str:
        return " ".join(hmc("levels", bundle).stdout.split())

    assert "BLEU and chrF" not in reported()
    record("full", 3, "2")
    record("h5", 3, "2")
    assert "BLEU and chrF: a, 3 sentences, beam 1. Times: requests of 2 at beam 1 on" in reported()
    record("h12", 4, "1")
    both = "(full, h12|h12, full)"  # in the order of their times
    assert re.search(rf"BLEU and chrF of different measurements, .*: {both}: a, 4 sentences, beam 1", reported())
    assert re.search(rf"Times of different measurements, .*: {both}: requests of 1 at beam 1", reported())


def test_names_are_no_markup(hmc: Hmc, tiny_bundle: Path, tmp_path: Path) -> None:
    bundle, text = tmp_path / "bundle", tmp_path / "a.en"
    shutil.copytree(tiny_bundle, bundle)
    text.write_text("A man runs.\n" * 3)
    few = (
        "--levels",
        "h5",
        "--batch",
        "1",
        "--beam",
        "1",
        "--rounds",
        "1",
        "--threads",
        "1",
        "--no-memory",
        "--record",
    )
    ran = done(hmc("bench", bundle, "--source", text, "--reference", text, "--test-set", "dev[/short]", *few))
    assert "dev[/short]" in ran.stdout
    assert "BLEU and chrF: dev[/short], 3 sentences" in hmc("levels", bundle).stdout


def test_what_a_level_computes(hmc: Hmc, tiny_bundle: Path, tmp_path: Path) -> None:
    ran = done(hmc("levels", tiny_bundle, "--program", "h5-int8"))
    assert ran.stdout.startswith("encode, once a sentence: ")
    lines = ran.stdout.splitlines()
    assert lines[-2].endswith(" → best tokens")
    assert lines[-1].endswith(" MiB of these weights are the first rows and columns of wider levels' matrices")
    widest = done(hmc("levels", tiny_bundle, "--program", "full-int8")).stdout.splitlines()
    assert widest[-1].endswith(" → best tokens")
    program = json.loads(done(hmc("levels", tiny_bundle, "--program", "h5", "--json")).stdout)
    assert program["step"][-1]["kind"] == "candidates"
    refused(hmc("levels", "--server", "localhost:1", "--program", "full"), "--program reads a bundle, not a server")
    old = Path(shutil.copytree(tiny_bundle, tmp_path / "old"))
    manifest = read_manifest(old)
    for level in manifest.levels:
        level.files = {name: digest for name, digest in level.files.items() if "/program." not in name}
    write_manifest(manifest, old)
    refused(hmc("levels", old, "--program", "full"), "level 'full' has no step program", "ONNX Runtime serves it")
    assert "ONNX Runtime runs all levels." in hmc("levels", old).stdout.replace("\n", " ")
    shown = "On a CPU the native executor runs full-int8, h12-int8, h5-int8; ONNX Runtime runs all others."
    assert (shown if library.best() else "ONNX Runtime runs all levels") in hmc("levels", tiny_bundle).stdout


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_a_narrow_terminal_cuts_nothing(
    hmc: Hmc, fake_bundle: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_terminal() -> Console:
        return Console(width=width, force_terminal=True, color_system=None)

    monkeypatch.setattr("hmc.cli.common.consoles.open_console", on_terminal)
    with changed_manifest(fake_bundle) as raw:
        raw["levels"][0]["latency"] = {
            "p50_ms": 111.1, "p95_ms": 122.2, "p99_ms": 133.3, "batch": 1, "beam": 4, "requests": 9, "machine": "m",
        }  # fmt: skip
    shown = done(hmc("levels", fake_bundle)).stdout
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown
    for text in ("full (default)", "h12", "h6", "29.80", "-0.20 (-0.30 to -0.10)", "111.1"):
        assert text in shown.replace("\u00a0", " ")
    if width < 80:
        assert "┃" not in shown


def test_a_bundle_that_is_replaced_is_named(
    hmc: Hmc, fake_bundle: Path, tmp_path: Path, tiny_checkpoint: Path, opus: Path
) -> None:
    said = (
        f"--out {fake_bundle}: its present content will be replaced at the end, and with it the recorded quality and "
        "latency of"
    )
    ran = hmc("compile", tiny_checkpoint, "-o", fake_bundle)
    assert said in ran.stderr
    assert "is replaced" not in done(hmc("compile", tiny_checkpoint, "-o", tmp_path / "new")).stderr
    done(hmc("import", opus, "-o", tmp_path / "imported"))
    assert "its present content will be replaced" in done(hmc("import", opus, "-o", tmp_path / "imported")).stderr

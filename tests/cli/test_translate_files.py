"""`hmc translate --source IN -o OUT`: what the library does with files, as a command."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Hmc
from tests.command import done, refused
from tests.serving.fakes import FakeFactory

from hmc.serving.server.background import BackgroundServer


def test_a_file_through_a_server(hmc: Hmc, server: BackgroundServer, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"one\r\n\ntwo")
    ran = hmc("translate", "--server", server.address, "--source", tmp_path / "in.txt", "-o", tmp_path / "out.txt")
    assert (ran.exit_code, ran.stdout) == (0, "")
    assert (tmp_path / "out.txt").read_text() == "full:one\n\nfull:two\n"


def test_a_file_through_a_bundle(hmc: Hmc, tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("A dog.\nA cat.\n")
    arguments = ("translate", "--bundle", tiny_bundle, "--source", tmp_path / "in.txt")
    printed = hmc(*arguments)
    ran = hmc(*arguments, "--out", tmp_path / "out.txt")
    assert (ran.exit_code, ran.stdout) == (0, "")
    assert (tmp_path / "out.txt").read_text() == printed.stdout


def test_a_stopped_run_is_resumed(hmc: Hmc, server: BackgroundServer, factory: FakeFactory, tmp_path: Path) -> None:
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\nb\ncrash\nc\n")
    arguments = ("translate", "--server", server.address, "--source", source, "-o", out)
    assert hmc(*arguments).exit_code == 1
    assert not out.exists()
    assert (tmp_path / "out.txt.part").read_text() == "full:a\nfull:b\n"
    refused(hmc(*arguments, "--level", "h6"), "other options")
    source.write_text("a\nb\nmended\nc\n")
    ran = done(hmc(*arguments))
    assert "going on after line 2" in ran.stderr
    assert out.read_text() == "full:a\nfull:b\nfull:mended\nfull:c\n"
    assert factory["full"].texts.count("a") == 1


def test_a_run_of_another_bundle_is_not_resumed(
    hmc: Hmc, tiny_bundle: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Else the file would be half of each."""
    source, other = tmp_path / "in.txt", tmp_path / "other"
    assert hmc("compile", tiny_checkpoint, "-o", other).exit_code == 0
    arguments = ("translate", "--source", source, "-o", tmp_path / "out.txt", "--bundle")
    source.write_text("A dog.\n" + "x" * 100_000 + "\n")
    assert hmc(*arguments, tiny_bundle).exit_code == 2
    source.write_text("A dog.\nA cat.\n")
    refused(hmc(*arguments, other), "other options")
    ran = done(hmc(*arguments, tiny_bundle))
    assert "going on after line 1" in ran.stderr


def test_errors_name_the_line_of_the_file(hmc: Hmc, server: BackgroundServer, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("a\n" + "x" * 100_000 + "\n")
    arguments = ("translate", "--server", server.address, "--source", source, "-o", tmp_path / "out.txt")
    for _ in range(2):
        refused(hmc(*arguments), "line 2 is longer than")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "OUT"], "--out needs --source"),
        (["-o", "OUT", "--source", "-"], "--out needs --source"),
        (["--restart"], "--restart needs --out"),
        (["-o", "OUT", "--source", "IN", "--document"], "--out does not work with --document"),
    ],
)
def test_refusals(hmc: Hmc, server: BackgroundServer, arguments: list[str], said: str) -> None:
    refused(hmc("translate", "--server", server.address, *arguments), said)

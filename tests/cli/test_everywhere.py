"""What every command has: short help, how much it says, a server from the environment, a place in the reference."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Hmc
from tests.command import done, refused, run_hmc
from tests.processes import environment

from hmc.cli.reference import page
from hmc.serving.server.background import BackgroundServer


@pytest.fixture(autouse=True)
def usual_log() -> Iterator[None]:
    """The log as it was: a command sets its level."""
    before = logging.getLogger("hmc").level
    yield
    logging.getLogger("hmc").setLevel(before)


def test_the_committed_reference_is_that_of_the_parser(repository: Path) -> None:
    committed = (repository / "docs" / "commands.md").read_text(encoding="utf-8")
    assert committed == page(), "run `make docs`"


def test_tables_are_printed_whatever_the_locale(tiny_bundle: Path) -> None:
    """Their signs are not in every encoding."""
    command = [sys.executable, "-m", "hmc.cli", "levels", str(tiny_bundle)]
    for encoding in ("latin-1", "ascii"):
        ran = subprocess.run(
            command, env={**os.environ, "PYTHONIOENCODING": encoding}, capture_output=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        assert "→" in ran.stdout.decode("utf-8")


@pytest.mark.parametrize("both", [False, True], ids=["stdout", "stderr too"])
@pytest.mark.parametrize(
    "words",
    [
        "--version",
        "--help",
        "bench --help",
        "prune --help",
        "analyze ablate --help",
        "levels {bundle}",
        "levels {bundle} --json",
        "token new someone --scope translate",
    ],
)
def test_a_closed_pipe_ends_quietly(words: str, both: bool, tiny_bundle: Path) -> None:
    """As `head -c 0` closes it. 141 is what shells report for a tool that SIGPIPE has ended."""
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "hmc.cli", *words.format(bundle=tiny_bundle).split()]
    stderr = writes if both else subprocess.PIPE
    ran = subprocess.run(command, env=environment(), stdout=writes, stderr=stderr, check=False)
    os.close(writes)
    assert (ran.returncode, ran.stderr or b"") == (141, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "words",
    [
        "--version",
        "--help",
        "levels --help",
        "levels {bundle}",
        "levels {bundle} --json",
        "translate --bundle {bundle} --level h5 Hello.",
        "token new someone --scope translate",
    ],
)
def test_what_cannot_be_printed_is_an_error(words: str, unbuffered: str, tiny_bundle: Path) -> None:
    """Python itself keeps what it could not write, tries again when it ends, and ends with 120."""
    command = [sys.executable, "-m", "hmc.cli", *words.format(bundle=tiny_bundle).split()]
    there = environment(PYTHONUNBUFFERED=unbuffered)
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(command, env=there, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1] == "hmc: standard output: No space left on device; make room"
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_error_that_cannot_be_printed_keeps_its_exit_code(unbuffered: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hmc.cli", "levels", str(tmp_path)]
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(command, env=environment(PYTHONUNBUFFERED=unbuffered), stderr=full, check=False)
    assert ran.returncode == 2


@pytest.mark.parametrize(
    "words", [(), ("compile",), ("bench",), ("bench", "run"), ("admin", "reload"), ("analyze", "importance")]
)
def test_short_help(words: tuple[str, ...], hmc: Hmc) -> None:
    ran = hmc(*words, "-h")
    assert ran.exit_code == 0
    assert ran.stdout == hmc(*words, "--help").stdout
    assert "Usage: hmc" in ran.stdout


def test_a_quiet_command_says_nothing_but_its_result(hmc: Hmc, tiny_checkpoint: Path, tmp_path: Path) -> None:
    loud = hmc("compile", tiny_checkpoint, "--out", tmp_path / "loud")
    quiet = hmc("compile", tiny_checkpoint, "--out", tmp_path / "quiet", "-q")
    assert loud.exit_code == quiet.exit_code == 0
    assert "full" in loud.stderr
    assert quiet.stderr == ""
    refused(hmc("compile", tmp_path / "nothing", "--out", tmp_path / "other", "--quiet"), "nothing")


def test_a_verbose_command_logs_more(hmc: Hmc, fake_bundle: Path) -> None:
    assert hmc("levels", fake_bundle, "--verbose").exit_code == 0
    assert logging.getLogger("hmc.serving").isEnabledFor(logging.DEBUG)
    assert hmc("levels", fake_bundle).exit_code == 0
    assert not logging.getLogger("hmc.serving").isEnabledFor(logging.DEBUG)


def test_quiet_and_verbose_exclude_each_other(hmc: Hmc, fake_bundle: Path) -> None:
    refused(hmc("levels", fake_bundle, "-q", "-v"), "--quiet and --verbose are opposites")


def test_the_environment_names_the_server(server: BackgroundServer, fake_bundle: Path, tmp_path: Path) -> None:
    there = {"HMC_SERVER": server.address}
    asked = done(run_hmc(["levels", "--json"], env=there))
    assert '"loaded": true' in asked.stdout
    done(run_hmc(["levels", fake_bundle], env={"HMC_SERVER": "nowhere.invalid:1"}))
    assert run_hmc(["admin", "status"], env=there).exit_code == 0
    assert run_hmc(["translate", "A man."], env=there).exit_code == 0
    both = run_hmc(["levels", fake_bundle, "--server", "other:1"], env=there)
    assert "give exactly one of BUNDLE (a directory) and --server HOST:PORT" in both.stderr
    refused(run_hmc(["translate", "A man."], env={"HMC_SERVER": None}), "--server")


@pytest.mark.parametrize("left", ["", "class InferenceSession: pass\n"])
def test_a_damaged_onnx_runtime_is_an_error_that_says_what_to_do(
    tiny_bundle: Path, tiny_checkpoint: Path, tmp_path: Path, left: str
) -> None:
    """Both builds have files of the same names: whoever removes one takes them from the other."""
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "__init__.py").write_text(left)
    for words in (("translate", "--bundle", tiny_bundle, "a"), ("compile", tiny_checkpoint, "-o", tmp_path / "b")):
        command = [sys.executable, "-m", "hmc.cli", *map(str, words)]
        ran = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 2, ran.stderr
        assert "Traceback" not in ran.stderr
        assert "pip uninstall onnxruntime onnxruntime-gpu" in ran.stderr

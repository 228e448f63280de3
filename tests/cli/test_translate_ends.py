"""How `hmc translate` ends: the exit code that its caller sees, in every state of its threads."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tiny import SENTENCES

COMMAND = [sys.executable, "-m", "hmc.cli", "translate", "--threads", "1", "--level", "h5", "--beam", "1", "--bundle"]


def start(bundle: Path, *options: str) -> subprocess.Popen[str]:
    """Starts the command with an open stdin, writes a first line, and waits for its translation."""
    process = subprocess.Popen(
        [*COMMAND, str(bundle), *options],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(SENTENCES[0] + "\n")
    process.stdin.flush()
    assert process.stdout.readline()
    return process


def ended(process: subprocess.Popen[str], code: int) -> str:
    assert process.stderr is not None
    assert process.wait(600) == code, process.stderr.read()
    reported = process.stderr.read()
    assert "Fatal" not in reported
    assert "terminate called" not in reported
    assert "Traceback" not in reported
    return reported


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """A process that a shell runs in the background ignores SIGINT, and so do the processes that it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_while_stdin_is_open(tiny_bundle: Path) -> None:
    with start(tiny_bundle) as process:
        process.send_signal(signal.SIGINT)
        ended(process, 130)


def test_a_line_that_is_refused_while_stdin_is_open(tiny_bundle: Path) -> None:
    with start(tiny_bundle) as process:
        assert process.stdin is not None
        process.stdin.write("a" * 70_000 + "\n")
        process.stdin.flush()
        assert "line 2" in ended(process, 2)


def test_a_reader_that_has_gone_while_stdin_is_open(tiny_bundle: Path) -> None:
    with start(tiny_bundle) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        for _ in range(2):
            process.stdin.write(SENTENCES[1] + "\n")
            process.stdin.flush()
        ended(process, 141)


@pytest.mark.slow
def test_wrong_options_while_a_file_is_read(tiny_bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "many.en"
    file.write_text("".join(f"{sentence}\n" for sentence in SENTENCES * 500))
    for _ in range(6):
        process = subprocess.Popen(
            [*COMMAND, str(tiny_bundle), "--source", str(file), "--suppress-token", ""],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        with process:
            assert "line 1" in ended(process, 2)

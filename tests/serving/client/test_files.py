"""Files that are translated line by line: whole lines, in order, resumed after a stop of any kind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes import environment
from tests.serving.client.scripted import Failure, Script, ScriptedServer

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import UnavailableError
from hmc.serving.client import ONCE, AsyncClient, Client, FileProgress, translate_file, translate_file_async
from hmc.serving.client.files import SAVED_EVERY

LINES = [f"line {number} ☃" for number in range(5 * SAVED_EVERY + 7)]


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[Client]:
    with Client(server.address, retry=ONCE) as connected:
        yield connected


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("\n".join(LINES), encoding="utf-8")
    return path


def translated(lines: list[str]) -> str:
    return "".join(f"server:{line}\n" for line in lines)


def test_a_line_for_a_line(client: Client, source: Path, tmp_path: Path) -> None:
    out, seen = tmp_path / "out.txt", list[FileProgress]()
    done = translate_file(client, source, out, progress=seen.append)
    size = source.stat().st_size
    assert out.read_text(encoding="utf-8") == translated(LINES)
    assert done == FileProgress(len(LINES), size, size, 0) == seen[-1]
    assert [one.lines for one in seen] == list(range(1, len(LINES) + 1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


def test_a_run_goes_on_where_the_last_one_stopped(client: Client, script: Script, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    script.failures = [Failure(after=250)]
    with pytest.raises(UnavailableError):
        translate_file(client, source, out)
    assert not out.exists()
    assert (tmp_path / "out.txt.part").read_text(encoding="utf-8") == translated(LINES[:250])
    assert translate_file(client, source, out).resumed_lines == 250
    assert script.seen[1] == LINES[250:]
    assert out.read_text(encoding="utf-8") == translated(LINES)


def test_the_asynchronous_client_does_the_same(
    server: ScriptedServer, script: Script, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.txt"

    async def run() -> FileProgress:
        async with AsyncClient(server.address, retry=ONCE) as client:
            return await translate_file_async(client, source, out)

    script.failures = [Failure(after=250)]
    with pytest.raises(UnavailableError):
        asyncio.run(run())
    assert asyncio.run(run()).resumed_lines == 250
    assert out.read_text(encoding="utf-8") == translated(LINES)


KILLED = """
import os, signal, sys
from hmc.serving.client import Client, translate_file

def progress(done):
    if done.lines == 333:
        os.kill(os.getpid(), signal.SIGKILL)

with Client(sys.argv[1]) as client:
    translate_file(client, sys.argv[2], sys.argv[3], progress=progress)
"""


def test_a_killed_run_loses_few_lines(server: ScriptedServer, client: Client, source: Path, tmp_path: Path) -> None:
    """The part may have lines, and half a line, beyond the last saved state: they are translated again."""
    out = tmp_path / "out.txt"
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, server.address, str(source), str(out)],
        env=environment(), timeout=600, check=False, capture_output=True,
    )  # fmt: skip
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    with (tmp_path / "out.txt.part").open("ab") as part:
        part.write(b"server:half a li")
    assert translate_file(client, source, out).resumed_lines == 300
    assert out.read_text(encoding="utf-8") == translated(LINES)


KILLED_AT_THE_END = """
import os, pathlib, signal, sys
from hmc.serving.client import Client, translate_file

pathlib.Path.unlink = lambda path: os.kill(os.getpid(), signal.SIGKILL)
with Client(sys.argv[1]) as client:
    translate_file(client, sys.argv[2], sys.argv[3])
"""


def test_a_run_that_was_killed_with_its_output_in_place_is_done(
    server: ScriptedServer, client: Client, script: Script, source: Path, tmp_path: Path
) -> None:
    """The output has its name, and the state of the run is not removed yet."""
    out, left = tmp_path / "out.txt", tmp_path / "out.txt.part.json"
    words = [sys.executable, "-c", KILLED_AT_THE_END, server.address, str(source), str(out)]
    ran = subprocess.run(words, env=environment(), timeout=600, check=False, capture_output=True)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    state = left.read_bytes()
    asked = len(script.seen)
    size = source.stat().st_size
    assert translate_file(client, source, out) == FileProgress(len(LINES), size, size, len(LINES))
    assert out.read_text(encoding="utf-8") == translated(LINES)
    assert script.seen[asked:] in ([], [[]])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]
    left.write_bytes(state)
    source.write_text("another\n", encoding="utf-8")  # as after a run that ended: the next one begins anew
    assert translate_file(client, source, out).resumed_lines == 0
    assert out.read_text(encoding="utf-8") == translated(["another"])
    left.write_bytes(state)
    with pytest.raises(InvalidRequestError, match="start anew"):  # another output: not that of the state
        translate_file(client, source, out)


@pytest.fixture
def stopped(client: Client, script: Script, source: Path, tmp_path: Path) -> Path:
    """The output of a run that has stopped."""
    out = tmp_path / "out.txt"
    script.failures = [Failure(after=250)]
    with pytest.raises(UnavailableError):
        translate_file(client, source, out)
    return out


def test_other_options_are_not_mixed(client: Client, source: Path, stopped: Path) -> None:
    with pytest.raises(InvalidRequestError, match="other options"):
        translate_file(client, source, stopped, "h6")
    assert translate_file(client, source, stopped, "h6", restart=True).resumed_lines == 0
    assert stopped.read_text(encoding="utf-8") == translated(LINES)


def test_a_source_that_has_changed_is_refused(client: Client, source: Path, stopped: Path) -> None:
    content = source.read_bytes()
    source.write_bytes(b"L" + content[1:])
    with pytest.raises(InvalidRequestError, match=r"in\.txt has changed since 250 lines"):
        translate_file(client, source, stopped)
    source.write_bytes(content[:100])
    with pytest.raises(InvalidRequestError, match=r"in\.txt has changed"):
        translate_file(client, source, stopped)
    source.write_bytes(content + b"\nmore")  # after what was read: no other text
    translate_file(client, source, stopped)
    assert stopped.read_text(encoding="utf-8") == translated([*LINES, "more"])


def test_an_output_that_has_changed_is_refused(client: Client, source: Path, stopped: Path) -> None:
    part = stopped.with_name("out.txt.part")
    part.write_bytes(part.read_bytes().replace(b"server", b"SERVER", 1))
    with pytest.raises(InvalidRequestError, match=r"out\.txt\.part has changed"):
        translate_file(client, source, stopped)


def test_what_is_not_of_a_run_is_kept(client: Client, source: Path, tmp_path: Path) -> None:
    part = tmp_path / "out.txt.part"
    part.write_text("mine")
    with pytest.raises(InvalidRequestError, match="belongs to no run that can be resumed"):
        translate_file(client, source, tmp_path / "out.txt")
    assert part.read_text() == "mine"
    part.unlink()
    sidecar = tmp_path / "out.txt.part.json"
    sidecar.write_text(json.dumps({"lines": 3}))
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        translate_file(client, source, tmp_path / "out.txt")


def test_two_runs_do_not_write_one_output(client: Client, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"

    def again(_: FileProgress) -> None:
        with pytest.raises(InvalidRequestError, match="being written by another run"):
            translate_file(client, source, out)

    source.write_text("a\n")
    translate_file(client, source, out, progress=again)


def test_a_link_as_output_stays(client: Client, source: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "out")
    translate_file(client, source, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert len((tmp_path / "folder" / "out").read_text().splitlines()) == len(source.read_text().splitlines())


def test_what_cannot_be_read(client: Client, source: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="is the file to translate"):
        translate_file(client, source, source)
    with pytest.raises(InvalidRequestError, match="cannot read"):
        translate_file(client, tmp_path / "none", tmp_path / "out")
    os.mkfifo(tmp_path / "pipe")
    kept = os.open(tmp_path / "pipe", os.O_RDWR)  # so that opening it waits for nobody
    with pytest.raises(InvalidRequestError, match="is a pipe, which a resumed run cannot read again"):
        translate_file(client, tmp_path / "pipe", tmp_path / "out")
    with pytest.raises(InvalidRequestError, match="pipe is no regular file: choose another output"):
        translate_file(client, source, tmp_path / "pipe")
    os.close(kept)
    source.write_bytes(b"fine\n\xff\n")
    with pytest.raises(InvalidRequestError, match="byte 0xff at offset 5, in line 2"):
        translate_file(client, source, tmp_path / "out")
    assert Path(tmp_path / "out.part").stat().st_size == len("server:fine\n")

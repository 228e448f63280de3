"""Folders of long jobs: one process at a time, from the first moment on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import environment

from hmc.artifact import InvalidRequestError
from hmc.pipelines.folders import First, taken_folder

FIRST = First("job.json", 1, "text")
REQUEST = {"text": "abc"}
TAKE = """
import fcntl, sys
from pathlib import Path
from hmc.artifact import InvalidRequestError
from hmc.pipelines.folders import First, taken_folder

lock = fcntl.flock

def late(file, operation):  # both have looked at the folder before one of them locks it
    print("looked", flush=True)
    sys.stdin.readline()
    lock(file, operation)

fcntl.flock = late
try:
    with taken_folder(Path(sys.argv[1]), {"text": "abc"}, First("job.json", 1, "text")):
        print("entered", flush=True)
        sys.stdin.readline()
except InvalidRequestError as error:
    print(error, flush=True)
"""


def test_of_two_that_begin_at_once_one_enters(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TAKE, str(tmp_path / "out")]
    both = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
        for _ in range(2)
    ]

    def told(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def go_on(process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()

    assert [told(process) for process in both] == ["looked", "looked"]
    answers = []
    for process in both:
        go_on(process)
        answers.append(told(process))
    assert answers[0] == "entered"
    assert answers[1].startswith(f"another process is translating into {tmp_path / 'out'}")
    for process in both:
        process.communicate("\n")
        assert process.returncode == 0


@pytest.mark.parametrize("share", [0, 0.5])
def test_what_a_stopped_process_began_to_write_is_written(tmp_path: Path, share: float) -> None:
    whole = FIRST.written(REQUEST)
    (tmp_path / "job.json").write_bytes(whole[: int(share * len(whole))])
    with taken_folder(tmp_path, REQUEST, FIRST):
        assert json.loads((tmp_path / "job.json").read_bytes()) == {"schema_version": 1, "text": "abc"}
    assert (tmp_path / "job.json").read_bytes() == whole


def test_another_request_and_other_files_are_refused(tmp_path: Path) -> None:
    with taken_folder(tmp_path / "out", REQUEST, FIRST):
        pass
    with pytest.raises(InvalidRequestError, match="another text"), taken_folder(tmp_path / "out", {"text": "d"}, FIRST):
        pass
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").touch()
    with pytest.raises(InvalidRequestError, match="holds notes"), taken_folder(tmp_path / "other", REQUEST, FIRST):
        pass
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["notes"]

"""The same translation on Ray: same bytes, also when its processes and its driver are killed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.pipelines.bulk.conftest import SETTINGS
from tests.processes import REPOSITORY, environment
from tests.support.files import bytes_of

from hmc.pipelines.bulk.engines import BulkLevel
from hmc.pipelines.bulk.run import translate_corpus

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install '.[ray]'"),
]
RUN = """
import sys
from pathlib import Path
from hmc.pipelines.bulk.engines import BulkLevel
from hmc.pipelines.bulk.run import translate_corpus
from tests.support.files import bytes_of
from tests.pipelines.bulk.conftest import SETTINGS
level = BulkLevel(Path(sys.argv[3]), "h12-int8", threads=1, workers=1)
translate_corpus([sys.argv[1]], sys.argv[2], level, SETTINGS, "ray")
"""


def start(corpus: Path, out: Path, level: BulkLevel) -> subprocess.Popen[str]:
    path = os.pathsep.join((environment()["PYTHONPATH"], str(REPOSITORY)))
    command = [sys.executable, "-c", RUN, str(corpus), str(out), str(level.bundle)]
    return subprocess.Popen(command, env=environment(PYTHONPATH=path), stderr=subprocess.PIPE, text=True)


def written(out: Path) -> int:
    return len(list((out / "translations").glob("[0-9]*")))


def kill_a_task(driver: int) -> bool:
    """Kills a process that translates, if there is one."""
    for process in psutil.Process(driver).children(recursive=True):
        if process.name().startswith("ray::translate"):
            process.kill()
            return True
    return False


def until(condition: Callable[[], bool], run: subprocess.Popen[str]) -> None:
    while not condition():
        assert run.poll() is None, "the run has ended before"
        time.sleep(0.02)


def test_killed_processes_and_drivers_change_no_byte(corpus: Path, level: BulkLevel, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    translate_corpus([str(corpus)], str(whole), level, SETTINGS)
    with start(corpus, out, level) as run:
        until(lambda: kill_a_task(run.pid), run)
        until(lambda: written(out) > 0, run)
        run.send_signal(signal.SIGKILL)
    with start(corpus, out, level) as run:
        _, said = run.communicate()
    assert run.returncode == 0, said
    assert bytes_of(out) == bytes_of(whole)

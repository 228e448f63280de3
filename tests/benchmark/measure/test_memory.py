"""Memory of a level, in a process of its own."""

import time
from pathlib import Path

import numpy as np
import pytest

from hmc.artifact import HmcError
from hmc.benchmark.measure.memory import MemoryRequest, measure_memory, peak_bytes


def request(bundle: Path, level: str) -> MemoryRequest:
    return MemoryRequest(str(bundle), level, "cpu", 1, 1, 2, 2, ("A man.", "A dog.", "Two men."))


def test_the_peak_is_that_of_the_fresh_process(tiny_bundle: Path) -> None:
    ballast = np.ones(300 * 2**20, np.uint8)  # this process's memory must not count
    found = measure_memory(request(tiny_bundle, "h12-int8"))
    assert ballast.nbytes < peak_bytes()
    assert 2**20 < found.before_load_bytes < found.peak_bytes < ballast.nbytes
    assert 2**20 < found.held_bytes < found.peak_bytes


def test_a_cold_start_counts_from_the_start_of_the_process(tiny_bundle: Path) -> None:
    began = time.time()
    found = measure_memory(request(tiny_bundle, "h12-int8"))
    assert found.cold_start_s is not None
    assert found.load_s is not None
    assert 0 < found.load_s < found.cold_start_s < time.time() - began


def test_a_process_that_was_killed_is_named(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = tmp_path / "python"
    killed.write_text("#!/bin/sh\necho loading >&2\nkill -9 $$\n")
    killed.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(killed))
    with pytest.raises(HmcError, match="measured: its process was killed by SIGKILL, often because memory ran out"):
        measure_memory(request(tiny_bundle, "h12"))


def test_what_went_wrong_there_is_said(tiny_bundle: Path) -> None:
    with pytest.raises(HmcError, match=r"memory of level 'h7' could not be measured: .*unknown level 'h7'"):
        measure_memory(request(tiny_bundle, "h7"))

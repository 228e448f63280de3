"""What is recorded about the machine."""

import subprocess
from typing import Any

import pytest

from hmc.benchmark.machine import this_machine


def test_this_machine() -> None:
    found = this_machine(["cpu", "cpu"])
    assert found.devices == {"cpu": found.cpu}
    assert found.cpu
    assert found.logical_cores >= 1
    assert found.memory_bytes > 2**20
    assert {"numpy", "sacrebleu"} <= set(found.versions)
    assert {"onnxruntime", "onnxruntime-gpu"} & set(found.versions)
    assert str(found) == f"{found.cpu} ({found.logical_cores} cores)"


def test_a_gpu_is_named_by_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "A GPU\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    found = this_machine(["cuda:1"])
    assert found.devices == {"cuda:1": "A GPU"}
    assert asked[0][-2:] == ["-i", "1"]
    assert str(found).endswith("cores), A GPU")


def test_without_the_drivers_tool_the_device_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(subprocess, "run", run)
    assert this_machine(["cuda:0"]).devices == {"cuda:0": "cuda:0"}

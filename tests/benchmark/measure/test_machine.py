"""What is recorded about the machine."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from hmc.benchmark.measure.machine import cpu_name, this_machine
from hmc.engine.runtime import processor as machine


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


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("model name\t: AMD EPYC\nflags\t\t: fpu avx avx2\n\nmodel name: second\n", "AMD EPYC with AVX2 without VNNI"),
        ("model name\t: AMD EPYC\nflags\t\t: avx2 avx512f avx512_vnni\n", "AMD EPYC with AVX512-VNNI"),
        ("model name\t: Old\nflags\t\t: sse2\n", "Old"),
    ],
)
def test_the_processor_is_named_with_what_it_can_do(
    cpuinfo: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    assert cpu_name() == name
    assert this_machine(["cpu"]).devices == {"cpu": name}


def test_a_processor_that_linux_gives_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd asimddp\nCPU part\t: 0xd0c\n")
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    assert cpu_name() == f"{machine.processor()['machine']} with DotProd"

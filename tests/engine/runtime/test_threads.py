"""The number of threads: limits of the process, and numbers that are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import SENTENCES

from hmc.artifact import InvalidRequestError
from hmc.engine.runtime import threads
from hmc.engine.runtime.graphs import Opener
from hmc.engine.runtime.threads import cpu_quota
from hmc.serving import Translator


def of_cpus(
    monkeypatch: pytest.MonkeyPatch, count: int, allowed: set[int], quota: float | None = None, reported: int = 0
) -> None:
    """Simulates a machine of `count` logical CPUs, of which this process may use some.

    quota: of its control groups. reported: what newer Pythons report; 0: what they report by themselves.
    """
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed, raising=False)
    monkeypatch.setattr(os, "process_cpu_count", lambda: reported or len(allowed), raising=False)
    monkeypatch.setattr(threads, "cpu_quota", lambda: quota)


def test_cores_that_a_process_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cores of two logical CPUs each, n and n + 8."""
    for cpu in range(16):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "core_cpus_list").write_text(f"{cpu % 8},{cpu % 8 + 8}\n")
    monkeypatch.setattr(threads, "CPUS", tmp_path)
    for allowed, cores in (
        (set(range(16)), 0), ({0, 8}, 1), ({0, 1, 2, 8, 9, 10}, 3), ({0, 1, 2, 3, 8, 9, 10, 11}, 4), (set(range(8)), 8),
    ):  # fmt: skip
        of_cpus(monkeypatch, 16, allowed)
        assert threads.threads_here(0) == cores
        assert threads.threads_here(5) == 5
    monkeypatch.setattr(threads, "CPUS", tmp_path / "nothing")
    of_cpus(monkeypatch, 16, {3, 11})
    assert threads.threads_here(0) == 2


@pytest.mark.parametrize(
    ("quota", "expected"),
    [(None, 0), (8.0, 0), (7.2, 0), (7.0, 7), (1.5, 2), (1.0, 1), (0.1, 1), (64.0, 0)],
)
def test_a_cpu_quota_is_rounded_up(monkeypatch: pytest.MonkeyPatch, quota: float | None, expected: int) -> None:
    monkeypatch.setattr(threads, "CPUS", Path("/nothing"))
    of_cpus(monkeypatch, 8, set(range(8)), quota)
    assert threads.threads_here(0) == expected
    assert threads.threads_here(3) == 3


def test_the_smallest_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "CPUS", Path("/nothing"))
    of_cpus(monkeypatch, 8, {0, 1, 2}, quota=2.0)
    assert threads.threads_here(0) == 2
    of_cpus(monkeypatch, 8, {0, 1, 2}, quota=6.0)
    assert threads.threads_here(0) == 3
    of_cpus(monkeypatch, 8, set(range(8)), quota=6.0, reported=4)
    assert threads.threads_here(0) == 4


GROUPS: list[tuple[dict[str, str], str, float | None]] = [
    ({}, "0::/", None),
    ({"cpu.max": "max 100000"}, "0::/", None),
    ({"cpu.max": "150000 100000"}, "0::/", 1.5),
    ({"a/b/cpu.max": "400000 100000", "a/cpu.max": "50000 100000"}, "0::/a/b", 0.5),
    ({"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, "0::/a/b", 3.0),
    ({"cpu.max": "200000 100000"}, "0::/outside/of/the/container", 2.0),
    ({"unified/a/cpu.max": "200000 50000"}, "1:cpu:/x\n0::/a", 4.0),
    ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/", None),
    ({"cpu/a/cpu.cfs_quota_us": "250000", "cpu/a/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/a", 2.5),
    ({"cpu,cpuacct/cpu.cfs_quota_us": "100000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/a", 1.0),
    ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, "4:cpuset:/\n5:memory:/", None),
]


@pytest.mark.parametrize(("files", "membership", "expected"), GROUPS)
def test_quotas_of_control_groups(
    tmp_path: Path, files: dict[str, str], membership: str, expected: float | None
) -> None:
    (tmp_path / "membership").write_text(f"{membership}\n")
    for name, text in files.items():
        (tmp_path / "mount" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mount" / name).write_text(f"{text}\n")
    assert cpu_quota(tmp_path / "membership", tmp_path / "mount") == expected


def test_a_system_without_control_groups_has_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "nothing", tmp_path) is None


def test_descriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    of_cpus(monkeypatch, 2, {0, 1})
    assert threads.described(0) == "one thread per physical core"
    assert threads.described(3) == "3 threads"
    of_cpus(monkeypatch, 2, {1})
    assert threads.described(0) == "1 thread, as this process may use no more cores"


def test_a_level_gets_the_limited_number_of_threads(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_cpus(monkeypatch, 4, {0})
    asked: list[int] = []
    plain = Opener._options

    def noted(opener: Opener, *arguments: Any, **named: Any) -> Any:
        asked.append(opener.threads)
        return plain(opener, *arguments, **named)

    monkeypatch.setattr(Opener, "_options", noted)
    with Translator(tiny_bundle, "full", device="cpu") as translator:
        assert translator.translate(SENTENCES[:1], segmentation="none")
    assert set(asked) == {1}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"threads": -1}, "threads -1: choose 0"),
        ({"threads": 99_999_999_999}, "threads 99999999999: choose .* at most 1024"),
        ({"workers": -1}, "workers -1: choose 0"),
        ({"workers": 100_000}, "workers 100000: choose .* at most 256"),
    ],
)
def test_numbers_that_are_refused(tiny_bundle: Path, given: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        Translator(tiny_bundle, **given)  # type: ignore[arg-type]  # as given

"""Threads: those that a process may use, and numbers that are a slip of the pen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import SENTENCES

from hmc.artifact.errors import InvalidRequestError
from hmc.serving import threads
from hmc.serving.opening import Opener
from hmc.serving.translator import Translator


def of_cpus(monkeypatch: pytest.MonkeyPatch, there: int, allowed: set[int]) -> None:
    """A machine of so many logical CPUs, of which this process may use some."""
    monkeypatch.setattr(os, "cpu_count", lambda: there)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed, raising=False)


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


def test_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    of_cpus(monkeypatch, 2, {0, 1})
    assert threads.described(0) == "one thread per physical core"
    assert threads.described(3) == "3 threads"
    of_cpus(monkeypatch, 2, {1})
    assert threads.described(0) == "1 thread, as this process may use no more cores"


def test_levels_of_such_a_process(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_cpus(monkeypatch, 4, {0})
    asked: list[int] = []
    plain = Opener._options

    def noted(opener: Opener, *arguments: Any) -> Any:
        asked.append(opener.threads)
        return plain(opener, *arguments)

    monkeypatch.setattr(Opener, "_options", noted)
    with Translator(tiny_bundle, "full", device="cpu") as translator:
        assert translator.translate(SENTENCES[:1])
    assert set(asked) == {1}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"threads": -1}, "threads -1: choose 0"),
        ({"threads": 99_999_999_999}, "threads 99999999999: choose .* at most 1024"),
        ({"workers": 0}, "workers 0: choose 1"),
        ({"workers": 100_000}, "workers 100000: choose .* at most 256"),
    ],
)
def test_refused(tiny_bundle: Path, given: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        Translator(tiny_bundle, **given)  # type: ignore[arg-type]  # as given

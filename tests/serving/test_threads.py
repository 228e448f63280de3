"""Threads: those that a process may use, and numbers that are a slip of the pen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.tiny import SENTENCES

from hmc.artifact.errors import InvalidRequestError
from hmc.serving.opening import Opener
from hmc.serving.threads import threads_here
from hmc.serving.translator import Translator


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="processes are not bound to CPUs here")
def test_a_process_that_may_use_few_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 8 if not logical else 16)
    for allowed, threads in ((1, 1), (3, 3), (8, 0), (16, 0)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, allowed=allowed: set(range(allowed)))
        assert threads_here(0) == threads
        assert threads_here(5) == 5
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: None)
    assert threads_here(0) == 0


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="processes are not bound to CPUs here")
def test_its_levels_have_no_more(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
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

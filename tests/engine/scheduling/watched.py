"""Calls a test where the batches of the host, of all engines in this process, admit sentences and make steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hmc.engine.scheduling.batch import HostBatch


def before_steps(monkeypatch: pytest.MonkeyPatch, call: Callable[[HostBatch], object]) -> None:
    """`call` is called with a batch before it makes steps; what it raises fails the batch."""
    step = HostBatch.step

    def watched(self: HostBatch, *rest: Any) -> Any:
        call(self)
        return step(self, *rest)

    monkeypatch.setattr(HostBatch, "step", watched)


def before_admissions(monkeypatch: pytest.MonkeyPatch, call: Callable[[HostBatch, list[Any]], object]) -> None:
    """`call` is called with a batch and the jobs that it then admits; what it raises fails them."""
    admit = HostBatch.admit

    def watched(self: HostBatch, jobs: list[Any], *rest: Any) -> None:
        call(self, jobs)
        admit(self, jobs, *rest)

    monkeypatch.setattr(HostBatch, "admit", watched)

"""A process that counts: its task, and what it holds."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from typing import Any

import psutil

from experiments.support.counting.libraries import StandIn
from experiments.support.counting.watching import Watch
from hmc.engine.runtime.process_memory import return_free_memory


@dataclass(frozen=True)
class Task:
    """What one process measures."""

    part: str
    bundle: str
    levels: tuple[str, ...]
    provider: dict[str, str]
    """Options of the CUDA provider that replace HMC's own."""
    settings: tuple[str, ...] = ()
    """Batches, as `Setting.parse` takes them."""
    rows: int = 128
    beam: int = 1
    sentences: int = 0
    text: tuple[str, ...] = ()
    """Parallel text that lengths are taken from: its two files."""

    @classmethod
    def read(cls, given: dict[str, Any]) -> Task:
        """A task from the values of its JSON, which has lists for tuples."""

        def value(found: Any) -> Any:
            return tuple(found) if isinstance(found, list) else found

        return cls(**{name: value(found) for name, found in given.items()})

    def but(self, **changes: Any) -> Task:
        """This task with other values."""
        return replace(self, **changes)


@dataclass
class Process:
    """The stand-ins and the watch of this process."""

    stand_in: StandIn
    watch: Watch

    def held(self) -> dict[str, int]:
        """What the process holds now, and has built since it began. `host_bytes`: resident memory without that of the
        device, all of which is resident (see `fresh`)."""
        gc.collect()
        return_free_memory()
        return {
            "plans": self.stand_in.plans,
            "graphs": self.watch.live_graphs, "graphs_made": len(self.watch.graphs),
            "bindings": self.watch.live_bindings, "bindings_made": self.watch.bindings,
            "device_bytes": self.stand_in.live_bytes, "device_peak_bytes": self.stand_in.peak_bytes,
            "host_bytes": psutil.Process().memory_info().rss - self.stand_in.live_bytes,
        }  # fmt: skip

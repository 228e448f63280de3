"""Where shards are translated: in this process, or as tasks of Ray. The one that runs changes no byte of the output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from hmc.pipelines.bulk.corpus import CorpusLine
from hmc.pipelines.bulk.settings import BulkSettings
from hmc.pipelines.bulk.shards import LineResult, collect, submit
from hmc.pipelines.window import in_turn, worker_rows
from hmc.serving.translator import Translator

EngineName = Literal["local", "ray"]
Shard = tuple[int, list[CorpusLine]]
Done = tuple[int, list[LineResult]]


@dataclass(frozen=True)
class BulkLevel:
    """What translates: a level of a bundle, and on what."""

    bundle: Path
    name: str
    device: str = "auto"
    threads: int = 0
    """Of each worker. 0: one with several workers or on Ray, else one for each physical core."""
    workers: int = 1
    """Batches that run at once: in this process, or as tasks of Ray."""


class BulkEngine(Protocol):
    """Translates shards."""

    def translate(self, shards: Iterator[Shard]) -> Iterator[Done]:
        """Yields each shard with what became of its lines, in any order. Reads few shards ahead."""

    def close(self) -> None:
        """Ends what it has started."""


class LocalEngine:
    """Translates in this process."""

    def __init__(self, level: BulkLevel, settings: BulkSettings) -> None:
        """Loads the level. Raises as `Translator`."""
        self._settings = settings
        self._translator = Translator(
            level.bundle, level.name, device=level.device, threads=level.threads, workers=level.workers,
            max_rows=worker_rows(settings.options.beam_size) * level.workers,
        )  # fmt: skip

    def translate(self, shards: Iterator[Shard]) -> Iterator[Done]:
        """See `BulkEngine`."""
        submitted = in_turn(shards, lambda shard: submit(self._translator, shard[1], self._settings))
        for (number, lines), waiting in submitted:
            yield number, collect(self._translator, lines, waiting, self._settings)

    def close(self) -> None:
        """See `BulkEngine`."""
        self._translator.close(drain=False)

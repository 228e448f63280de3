"""The settings of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from hmc.artifact.errors import InvalidRequestError
from hmc.benchmark.measure.latency import RequestSize
from hmc.engine.requests.options import MAX_BEAM
from hmc.engine.runtime.threads import check_threads

DEFAULT_BATCHES = (1, 32)
PREFERRED_BEAM = 4
"""Beam size of the headline setting, if it is measured. It is the default of `hmc serve`."""


@dataclass(frozen=True)
class BenchmarkSettings:
    """What to measure, and how. Raises InvalidRequestError on values out of range."""

    bundle: Path
    src: Path
    ref: Path | None = None
    """References. None: quality is not measured."""
    levels: tuple[str, ...] | None = None
    """Level names; None: all levels that run on `device`."""
    batches: tuple[int, ...] | None = None
    """Sentences of one request. None: 1 and 32, or fewer if the test set is smaller."""
    beams: tuple[int, ...] = (1, 4)
    rounds: int = 6
    """As many as give p99 its requests at batch 1, with `latency_limit` sentences."""
    limit: int | None = None
    """Number of sentence pairs to read, from the start of the files; None: all. Quality is measured on them."""
    latency_limit: int = 128
    """Number of sentences to time in a round, from the start of those read."""
    device: str = "auto"
    threads: int = 0
    """Threads of each worker of a level. 0: one for each physical core; with several workers, one each."""
    workers: int = 1
    """Batches that a level runs at the same time."""
    memory: bool = True
    """Whether to measure the memory of each level, in a process of its own."""
    test_set_name: str | None = None
    peers: tuple[str, ...] = ()
    """Other engines with the same weights: names in `hmc.benchmark.peers.engines.ENGINES`."""
    checkpoint: Path | None = None
    """The weights that the bundle was compiled from, for the peers."""
    load_ms: float | None = None
    """Objective of a load curve of every level, in milliseconds; None: no load is put on anything."""
    load_seconds: float = 10.0
    """Time of each rate of a load curve."""

    def __post_init__(self) -> None:
        self._check_sizes()
        for name in ("rounds", "latency_limit"):
            if getattr(self, name) < 1:
                raise InvalidRequestError(f"{name} {getattr(self, name)}: choose 1 or more")
        for name, value in (("load", self.load_ms), ("load seconds", self.load_seconds)):
            if value is not None and not 0 < value < float("inf"):
                raise InvalidRequestError(f"{name} {value:g}: choose a number above 0")
        if self.limit is not None and self.limit < 1:
            raise InvalidRequestError(f"limit {self.limit}: choose 1 sentence or more, or leave it out for all")
        check_threads(self.threads, self.workers)
        if self.levels is not None and not self.levels:
            raise InvalidRequestError("levels: name at least one, or say all")
        if self.levels is not None and len(set(self.levels)) < len(self.levels):
            raise InvalidRequestError(f"levels {','.join(self.levels)}: give each level once")

    def _check_sizes(self) -> None:
        for name, values, most in (("batch", self.sizes, None), ("beam", self.beams, MAX_BEAM)):
            if not values:
                raise InvalidRequestError(f"{name}: give at least one size")
            for value in values:
                if value < 1 or (most is not None and value > most):
                    allowed = f"1 to {most}" if most else "1 or more"
                    raise InvalidRequestError(f"{name} {value}: choose {allowed}")
            if len(set(values)) < len(values):
                raise InvalidRequestError(f"{name} {','.join(map(str, values))}: give each size once")

    @property
    def sizes(self) -> tuple[int, ...]:
        """`batches`, or the default sizes."""
        return DEFAULT_BATCHES if self.batches is None else self.batches

    def fitted(self, sentences: int) -> BenchmarkSettings:
        """These settings with batches that a test set of `sentences` sentences, blank ones not counted, can fill.

        Raises InvalidRequestError if a requested batch is larger.
        """
        timed = min(self.latency_limit, sentences)
        if not timed:
            raise InvalidRequestError(
                "every line that was read is blank, so there is nothing to time: give a file with text"
            )
        if self.batches is None:
            return replace(self, batches=tuple(dict.fromkeys(min(size, timed) for size in DEFAULT_BATCHES)))
        if max(self.batches) > timed:
            raise InvalidRequestError(
                f"batch {max(self.batches)}: only {timed} sentences are timed (the test set has {sentences} that are "
                f"not blank, the latency limit is {self.latency_limit}), and they do not fill one request; choose "
                f"{timed} or less, or time more sentences"
            )
        return self

    @property
    def tuned(self) -> bool:
        """Whether levels run at their fastest division of the cores, as peers do; given threads or workers stay."""
        return bool(self.peers) and self.threads == 0 and self.workers == 1

    @property
    def points(self) -> list[RequestSize]:
        """Every combination of batch size and beam size."""
        return [RequestSize(batch, beam) for batch, beam in product(self.sizes, self.beams)]

    @property
    def headline(self) -> RequestSize:
        """The setting whose latency is plotted and recorded: the smallest batch, and beam 4 if it is measured."""
        beam = PREFERRED_BEAM if PREFERRED_BEAM in self.beams else max(self.beams)
        return RequestSize(min(self.sizes), beam)

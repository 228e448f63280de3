"""What a level has computed since it was loaded, and what it does now, for metrics and for operators."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

ROW_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Upper bounds of the counts of batches by their rows; one more count is of larger ones."""


@dataclass
class Work:
    """The work that one worker has done, or several workers together. One thread changes it; others may read it
    meanwhile. The warm-up does not count.

    A worker's turn is one step of the decoder for the rows of one batch, or several steps while nothing else waits.
    """

    encoder_seconds: float = 0.0
    """Seconds of encoding. On a CUDA device: those in which the worker hands its work to the device."""
    decoder_seconds: float = 0.0
    """Seconds of decoder turns."""
    row_seconds: float = 0.0
    """Sum of rows × seconds over decoder turns."""
    rows: int = 0
    """Sum of rows over decoder turns."""
    steps_by_rows: list[int] = field(default_factory=lambda: [0] * (len(ROW_BOUNDS) + 1))
    """Decoder turns by rows: those up to each of `ROW_BOUNDS`, less those up to the bound before it."""
    done: int = 0
    """Sentences that have ended with a translation or a score."""
    cancelled: int = 0
    """Sentences whose caller cancelled them while they ran."""
    failed: int = 0
    """Sentences that ended with an error while they ran."""

    def encoded(self, seconds: float) -> None:
        """Counts the encoding of sentences."""
        self.encoder_seconds += seconds

    def decoded(self, rows: int, seconds: float) -> None:
        """Counts a decoder turn. rows: hypotheses in its batch."""
        self.decoder_seconds += seconds
        self.row_seconds += rows * seconds
        self.rows += rows
        self.steps_by_rows[bisect_left(ROW_BOUNDS, rows)] += 1

    @classmethod
    def total(cls, parts: Iterable[Work]) -> Work:
        """The sum of what several workers have computed."""
        added = cls()
        for part in parts:
            for counted in fields(cls):
                old = getattr(added, counted.name)
                new = getattr(part, counted.name)
                both = [a + b for a, b in zip(old, new, strict=True)] if counted.name == "steps_by_rows" else old + new
                setattr(added, counted.name, both)
        return added


@dataclass(frozen=True)
class BatchLoad:
    """Sentences that a worker decodes together, at one moment."""

    worker: int
    """Counted from 0."""
    sentences: int
    rows: int
    """Hypotheses: of each sentence as many as its beam."""
    interactive: bool
    """Whether its sentences are of interactive calls, which go before others."""


@dataclass(frozen=True)
class LevelWork:
    """The work of a level and its limits, at one moment."""

    total: Work = field(default_factory=Work)
    """Of all its workers."""
    workers: int = 0
    """Workers of all its replicas together; each runs one batch at a time."""
    max_rows: int = 0
    """Most hypotheses that these workers decode together."""
    waiting: int = 0
    """Sentences in the queue, which do not run yet."""
    queue_size: int = 0
    """Most sentences in the queue."""
    batches: tuple[BatchLoad, ...] = ()
    """The batches that run."""

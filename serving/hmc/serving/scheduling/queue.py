"""The sentences of a level that wait, and the order in which they start."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import islice

from hmc.artifact.bundle.manifest import Variant
from hmc.artifact.errors import OverloadedError, UnavailableError
from hmc.serving.decoding.job import Job, Mode
from hmc.serving.requests.priority import Priority
from hmc.serving.requests.results import Decoded

log = logging.getLogger(__name__)

INTERACTIVE_IN_A_ROW = 3
"""Interactive sentences that may start in a row while other sentences wait. The next one to start is one of those."""

Line = OrderedDict[Future[Decoded], Job]


class WaitingQueue:
    """Sentences wait in two lines: interactive ones, and all others. Interactive sentences start first, but while both
    lines hold sentences, every fourth start is from the other line. A sentence whose decoder variant is not open yet is
    held aside, so that later sentences can start before it.

    All workers of a level share the queue. `changed` is its lock, and is notified whenever something changes. Every
    method takes the lock. It is reentrant: hold it around several calls that belong together.
    """

    def __init__(self, size: int) -> None:
        """size: sentences that may wait before the queue is full."""
        self.size = size
        self.bulk_size = -(-size // 2)
        """Sentences that may wait before the queue is full for `Priority.BULK`."""
        self.changed = threading.Condition()
        self.closed = False
        self.failure: str | None = None
        """Why a worker of the level stopped unexpectedly; None if none did, or if one has answered a sentence since."""
        self.open_variants: set[Variant | None] = {None}
        self._interactive: Line = OrderedDict()
        self._others: Line = OrderedDict()
        self._held: Line = OrderedDict()
        self._in_a_row = 0
        self._when_space: list[Callable[[], None]] = []

    # Counts may be read without the lock: each is the length of a dictionary.

    def __len__(self) -> int:
        return self.ready + len(self._held)

    @property
    def ready(self) -> int:
        """Sentences that can start, if there are rows for them."""
        return len(self._interactive) + len(self._others)

    @property
    def interactive(self) -> int:
        """Interactive sentences that can start, if there are rows for them."""
        return len(self._interactive)

    @property
    def waiting_interactive(self) -> int:
        """All interactive sentences in the queue, also those that are held until their decoder variant is open."""
        with self.changed:
            return len(self._interactive) + sum(job.mode.interactive for job in self._held.values())

    def __iter__(self) -> Iterator[Job]:
        with self.changed:
            return iter([*self._interactive.values(), *self._others.values(), *self._held.values()])

    def put(self, job: Job, priority: Priority = Priority.INTERACTIVE, *, block: bool = False) -> bool:
        """Appends a sentence to its line. Returns False if it is held until `open_variant` is called.

        block: wait while the queue is full. Raises OverloadedError for a full queue unless `block`, and
        UnavailableError once closed.
        """
        limit = self.bulk_size if priority is Priority.BULK else self.size
        with self.changed:
            while len(self) >= limit and not self.closed:
                if not block:
                    raise OverloadedError(
                        f"the queue of {self.size} sentences is full; try again later or choose a smaller level"
                    )
                self.changed.wait()
            if self.closed:
                raise UnavailableError("the engine is shutting down; send the request elsewhere")
            can_start = job.mode.variant in self.open_variants
            self._append(job, can_start=can_start)
            self.changed.notify_all()
            return can_start

    def first(self) -> Job:
        """The sentence that starts next. Raises StopIteration if none can start."""
        with self.changed:
            return next(iter(self._next.values()))

    def upcoming(self, mode: Mode, most: int) -> list[Job]:
        """Those of the first `most` sentences in the line of this mode that are of this mode, in their order. They go
        on waiting."""
        with self.changed:
            line = self._interactive if mode.interactive else self._others
            return [job for job in islice(line.values(), most) if job.mode == mode]

    def take(self) -> Job:
        """Removes the sentence that starts next, and returns it. Raises KeyError if none can start."""
        with self.changed:
            line = self._next
            self._in_a_row = self._in_a_row + 1 if line is self._interactive and self._others else 0
            return line.popitem(last=False)[1]

    def remove(self, future: Future[Decoded]) -> bool:
        """Removes the sentence of this future. Returns False if it does not wait here."""
        with self.changed:
            found = any(line.pop(future, None) is not None for line in (self._interactive, self._others, self._held))
            if found:
                self.announce_space()
            return found

    def clear(self) -> list[Job]:
        """Removes every sentence and returns them."""
        with self.changed:
            jobs = list(self)
            for line in (self._interactive, self._others, self._held):
                line.clear()
            self._in_a_row = 0
            self.announce_space()
            return jobs

    # ---- decoder variants ----

    def open_variant(self, variant: Variant) -> None:
        """From now on, sentences that need this decoder variant can start. Those that were held join their lines."""
        with self.changed:
            self.open_variants.add(variant)
            for job in self.take_held(variant):
                self._append(job, can_start=True)
            self.changed.notify_all()

    def take_held(self, variant: Variant) -> list[Job]:
        """Removes the sentences that wait for a decoder variant, and returns them."""
        with self.changed:
            jobs = [job for job in self._held.values() if job.mode.variant == variant]
            for job in jobs:
                del self._held[job.future]
            self.announce_space()
            return jobs

    # ---- space ----

    def call_when_space(self, call: Callable[[], None]) -> None:
        """Calls `call` once, as soon as the queue has space for `Priority.BULK` or is closed. `call` runs with the
        queue locked, in this thread or in the one that makes the space, and has to be quick."""
        with self.changed:
            self._when_space.append(call)
            self.announce_space()

    def announce_space(self) -> None:
        """Wakes every thread that waits for space or for work. If there is space, makes the calls that wait for it."""
        with self.changed:
            self.changed.notify_all()
            if not self._when_space or not (len(self) < self.bulk_size or self.closed):
                return
            calls, self._when_space = self._when_space, []
            for call in calls:
                try:
                    call()
                except Exception:
                    log.exception("a callback for space in the queue raised; the queue goes on")

    def close(self) -> None:
        """From now on `put` raises UnavailableError. Sentences that wait stay in the queue."""
        with self.changed:
            self.closed = True
            self.announce_space()

    # ---- lines ----

    def _append(self, job: Job, *, can_start: bool) -> None:
        line = self._held if not can_start else self._interactive if job.mode.interactive else self._others
        line[job.future] = job

    @property
    def _next(self) -> Line:
        others_first = self._others and self._in_a_row >= INTERACTIVE_IN_A_ROW
        return self._others if others_first or not self._interactive else self._interactive

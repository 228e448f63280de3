"""The decode engine of one level, with continuous batching: a sentence joins a running batch at the next step, and
frees its rows as soon as it has ended or was cancelled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from hmc.artifact.bundle.manifest import Variant
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.rounding import ceil_div
from hmc.engine.requests.options import MAX_TOKENS, DecodeOptions
from hmc.engine.requests.results import DeviceUse
from hmc.engine.requests.work import BatchLoad, LevelWork, Work
from hmc.engine.runtime.memory.account import memory_of
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling.level_engine import LevelEngine
from hmc.engine.scheduling.postprocessor import Postprocessor, set_exception
from hmc.engine.scheduling.queue import WaitingQueue
from hmc.engine.scheduling.runners import runner_of
from hmc.engine.scheduling.scheduler import Scheduler
from hmc.engine.scheduling.warm_up import warm_up
from hmc.engine.scheduling.worker import Worker


def rows_of_worker(max_rows: int, workers: int) -> int:
    """Rows of each worker: its part of `max_rows`. Raises InvalidRequestError if the default beam fits `max_rows`, but
    not this part."""
    rows = ceil_div(max_rows, workers)
    default = DecodeOptions().rows
    if rows < min(default, max_rows):
        most = max(1, max_rows // default)
        raise InvalidRequestError(
            f"workers {workers}: max_rows {max_rows} leaves {rows} rows to each, and the default beam needs {default}; "
            f"choose at most {most} worker{'s' if most > 1 else ''}, or max_rows {workers * default} or more"
        )
    return rows


class Engine(LevelEngine):
    """The queue of a level, and the workers that take from it, in this process."""

    def __init__(
        self,
        sessions: LevelSessions | Sequence[LevelSessions],
        *,
        queue_size: int,
        max_rows: int,
        max_tokens: int = MAX_TOKENS,
        workers: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """sessions: of the level; several are its replicas, one for each device, which take from one queue. queue_size:
        sentences that may wait. max_rows: hypotheses decoded together on one device. max_tokens: bound on the cache
        memory of one device, counted as rows × the positions that the longest sentence of their batch may need. A
        sentence that needs more runs alone. In device form it bounds each mode's pools, see `PoolBudget`. workers: of
        each replica; `max_rows` and `max_tokens` are divided among them, and they share its sessions. clock: returns
        seconds; it times idle batches and the slices of time that batches get.

        Raises InvalidRequestError for several workers on a device other than the CPU, and for so many workers that the
        default beam fits none of them.
        """
        self.replicas = [sessions] if isinstance(sessions, LevelSessions) else list(sessions)
        self.sessions = self.replicas[0]
        """Of the first replica. All have the same graphs."""
        if workers > 1 and self.sessions.device.kind != "cpu":
            raise InvalidRequestError(f"workers {workers}: on {self.sessions.device} a level has one; choose 1")
        rows = rows_of_worker(max_rows, workers)
        super().__init__(self.sessions, WaitingQueue(queue_size, clock), rows)
        self._schedulers: list[Scheduler] = []
        self._opening: dict[Variant, threading.Thread] = {}
        self._postprocessor = Postprocessor()
        tokens = ceil_div(max_tokens, workers)
        self.workers: list[Worker] = []
        self._pairs: list[tuple[LevelSessions, Scheduler]] = []
        for replica in self.replicas:
            runner = runner_of(replica, self.max_rows, tokens)
            for _ in range(workers):
                scheduler = Scheduler(
                    self.queue, self._schedulers,
                    max_rows=self.max_rows, max_tokens=tokens, budget=runner.budget, clock=clock,
                )  # fmt: skip
                self._pairs.append((replica, scheduler))
                self.workers.append(Worker(runner, self.queue, scheduler, self._postprocessor))
        for worker in self.workers:
            worker.start()

    @property
    def pending(self) -> int:
        """Sentences that wait or run."""
        with self.queue.changed:
            return len(self.queue) + sum(scheduler.count() for scheduler in self._schedulers)

    @property
    def pending_interactive(self) -> int:
        """Interactive sentences that wait or run."""
        with self.queue.changed:
            return self.queue.waiting_interactive + sum(
                scheduler.count(interactive=True) for scheduler in self._schedulers
            )

    @property
    def work(self) -> LevelWork:
        """What all workers have computed together, and the limits of the level."""
        total = Work.total(worker.work for worker in self.workers)
        rows = self.max_rows * len(self.workers)
        batches = []
        for number, scheduler in enumerate(self._schedulers):
            for mode, sentences in scheduler.batches():
                batches.append(BatchLoad(number, sentences, sentences * mode.rows, mode.interactive))
        return LevelWork(total, len(self.workers), rows, len(self.queue), self.queue.size, tuple(batches))

    @property
    def calls_back(self) -> bool:
        """Whether this thread runs the callbacks of the engine."""
        return self._postprocessor.is_this_thread

    @property
    def device(self) -> str:
        return ",".join(str(replica.device) for replica in self.replicas)

    @property
    def weights(self) -> dict[str, int]:
        return self.sessions.weights

    @property
    def device_bytes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for replica in self.replicas:
            if replica.device.kind != "cpu":
                sizes |= replica.device_weights
                sizes[f"caches {id(replica)}"] = replica.memory.reserved
        return sizes

    @property
    def device_use(self) -> tuple[DeviceUse, ...]:
        return tuple(memory_of(r.device).use() for r in self.replicas if r.device.kind != "cpu")

    def warm_up(self) -> None:
        warm_up(self, self.replicas, self.only)
        self.queue.speed.forget()  # the first sentences are slow
        for worker in self.workers:
            worker.work = Work()

    def release_memory(self) -> None:
        for replica in self.replicas:
            replica.release_memory()

    @contextmanager
    def only(self, replica: LevelSessions) -> Iterator[None]:
        """Within the `with` block no sentence starts on any other replica. Sentences that run go on."""
        others = [scheduler for sessions, scheduler in self._pairs if sessions is not replica]
        try:
            for scheduler in others:
                scheduler.pause(True)
            yield
        finally:
            for scheduler in others:
                scheduler.pause(False)

    def close(self, drain: bool = True) -> None:
        """Stops the workers after every sentence is answered. Without `drain`, cancels all sentences that are left.

        Returns when all callbacks have run. If it is called from a callback, it returns when the workers have stopped.
        """
        self.queue.close()
        if not drain:
            with self.queue.changed:  # no sentence is on its way from the queue to a worker meanwhile
                jobs = list(self.queue)
                for scheduler in self._schedulers:
                    jobs += scheduler.running()
            for job in jobs:
                job.future.cancel()
        with self.queue.changed:
            opening = list(self._opening.values())
        for thread in (*opening, *self.workers):
            thread.join()
        for replica in self.replicas:
            replica.close()
        self._postprocessor.close()

    def _queued(self, variants: set[Variant]) -> None:
        for variant in variants:
            self._open_aside(variant)

    def _cancelled(self, future: Future[Any]) -> None:
        for scheduler in self._schedulers:
            scheduler.note_cancelled(future)

    # ---- decoder variants ----

    def _open_aside(self, variant: Variant | None) -> None:
        """Starts a thread that opens a variant of the decoder, if none does yet. Opening can take seconds; other
        sentences go on meanwhile."""
        with self.queue.changed:
            if variant is not None and variant not in self._opening and variant not in self.queue.open_variants:
                opening = threading.Thread(target=self._open, args=(variant,), name=f"hmc-open-{variant}", daemon=True)
                self._opening[variant] = opening
                opening.start()

    def _open(self, variant: Variant) -> None:
        """Opens the variant. The sentences that need it can then start; if it cannot be opened, they fail."""
        try:
            for replica in self.replicas:
                replica.decoder(variant)
        except Exception as error:  # noqa: BLE001 - the error goes to the sentences that need this variant
            with self.queue.changed:  # with the lock, `close` ends the postprocessor after these calls, not before
                jobs = self.queue.take_waiting_for_graph(variant)
                del self._opening[variant]  # the next sentence tries again
                self._postprocessor.post([partial(set_exception, job.future, error) for job in jobs])
        else:
            self.queue.open_variant(variant)

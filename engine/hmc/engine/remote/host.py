"""The engine's process: opens levels for its fronts and decodes their sentences."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias

from hmc.artifact.bundle.manifest import SEARCH_VARIANTS, VARIANTS, read_manifest
from hmc.artifact.errors import FailedPreconditionError, HmcError, InternalServiceError, UnavailableError
from hmc.engine.decoding.constraints import UNCONSTRAINED
from hmc.engine.decoding.job import EncodedSentence, Job
from hmc.engine.opening import EngineSettings, open_engine
from hmc.engine.remote.frames import (
    LENGTH,
    Cancel,
    Certain,
    Close,
    Closed,
    FromFront,
    LevelState,
    LinkError,
    Message,
    Open,
    Opened,
    ReleaseMemory,
    States,
    Submit,
    done,
    frame,
    from_front,
    refused,
    size_of,
    unpack_options,
)
from hmc.engine.requests.caller import Caller, Priority
from hmc.engine.requests.results import Decoded
from hmc.engine.requests.work import LevelWork
from hmc.engine.runtime.memory import cuda_calls
from hmc.engine.runtime.process_memory import process_bytes
from hmc.engine.scheduling.engine import Engine

log = logging.getLogger(__name__)

STATE_S = 1.0
"""Seconds between two reports of what the levels do."""
CUDA_HAS_FAILED = 70
"""Exit code of the process when CUDA refuses its calls for good (EX_SOFTWARE of sysexits.h)."""
QUEUE_SIZE = 2**20
"""Sentences that may wait here. Each front has a queue of its own, which is bounded; here only those wait that start
next."""


@dataclass(eq=False)
class _Level:
    """A level that is open, for all fronts that opened it alike."""

    engine: Engine
    fronts: list[Front]
    """The first one is told what the level holds and has computed."""


LevelKey: TypeAlias = tuple[str, str, str, EngineSettings]
"""Folder and version of a bundle, name of a level, settings."""


class EngineHost:
    """The levels of the engine's process. Levels that several fronts open alike are open once."""

    def __init__(self) -> None:
        self._levels: dict[LevelKey, _Level] = {}
        self._changing = threading.Lock()
        """Held while a level is opened or closed."""

    def open(self, asked: Open, front: Front) -> LevelKey:
        """Opens a level and warms it up, or finds it open. Raises as `open_engine`, and FailedPreconditionError if the
        folder holds another version of the bundle now."""
        key = asked.bundle, asked.version, asked.name, asked.settings
        with self._changing:
            if (level := self._levels.get(key)) is not None:
                level.fronts.append(front)
                return key
            bundle = Path(asked.bundle)
            manifest = read_manifest(bundle)
            if manifest.version != asked.version:
                raise FailedPreconditionError(
                    f"{bundle} holds version {manifest.version} now, and not {asked.version}: reload the bundle"
                )
            settings = replace(asked.settings, queue_size=QUEUE_SIZE)
            engine = open_engine(bundle, manifest, manifest.level(asked.name), settings)
            try:
                engine.warm_up()
            except BaseException:
                engine.close(drain=False)
                raise
            self._levels[key] = _Level(engine, [front])
        return key

    def engine(self, key: LevelKey) -> Engine:
        """The engine of a level that is open."""
        return self._levels[key].engine

    def close(self, key: LevelKey, front: Front) -> None:
        """A front needs a level no longer. The last one closes it."""
        with self._changing:
            level = self._levels[key]
            level.fronts.remove(front)
            if not level.fronts:
                del self._levels[key]
                level.engine.close(drain=False)

    def state(self, key: LevelKey, front: Front) -> LevelState:
        """What a front is told of a level."""
        level = self._levels[key]
        engine = level.engine
        sessions = engine.sessions
        variants = tuple(variant for variant in (*VARIANTS, *SEARCH_VARIANTS) if sessions.has(variant))
        state = LevelState(
            engine.device, engine.max_rows, len(engine.workers), sessions.scores_wanted, sessions.searches_inside,
            sessions.any_patience, variants, {}, {}, (), LevelWork(), engine.failure,
        )  # fmt: skip
        if level.fronts[0] is not front:
            return state
        return replace(
            state, weights=dict(engine.weights), device_bytes=engine.device_bytes, device_use=engine.device_use,
            work=engine.work,
        )  # fmt: skip

    def end_with_cuda(self) -> None:
        """Ends the process if a level has failed and CUDA answers nothing for its device any more.

        After an error such as an illegal address CUDA refuses every later call of the process: only a new one helps.
        """
        for level in list(self._levels.values()):
            if level.engine.failure is None:
                continue
            for replica in level.engine.replicas:
                if replica.device.kind != "cuda":
                    continue
                try:
                    cuda_calls.free_and_total(replica.device.index)
                except InternalServiceError as error:
                    log.critical("%s refuses every call, so this process ends: %s", replica.device, error)
                    os._exit(CUDA_HAS_FAILED)

    def serve(self, path: Path, ready: Callable[[], None]) -> None:
        """Serves fronts on a socket that only this user can open, until the process ends. ready: called when it
        listens. Raises OSError if it cannot listen."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            before = os.umask(0o177)
            try:
                listener.bind(os.fspath(path))
            finally:
                os.umask(before)
            listener.listen()
            ready()
            while True:
                connection, _ = listener.accept()
                Front(self, connection).start()


class Front:
    """One front: a thread that reads what it sends, and a thread that writes what it gets. A front that goes, or sends
    what is no frame, loses its sentences and levels; other fronts do not notice."""

    def __init__(self, host: EngineHost, connection: socket.socket) -> None:
        self._host = host
        self._connection = connection
        self._caller = Caller(f"front {id(self)}")
        """Fronts take turns."""
        self._levels: dict[int, LevelKey] = {}
        self._sentences: dict[int, Future[Decoded]] = {}
        self._to_write: SimpleQueue[Message | None] = SimpleQueue()
        self._gone = threading.Event()
        self._changing = threading.Lock()
        """Held while this front's levels are looked up or changed."""

    def start(self) -> None:
        """Starts the threads."""
        for work in (self._read, self._write, self._report):
            threading.Thread(target=work, name="hmc-front", daemon=True).start()

    # ---- reading ----

    def _read(self) -> None:
        try:
            while head := self._receive(LENGTH.size):
                self._hear(from_front(self._receive(size_of(head))))
        except LinkError as error:
            log.error("a front is cut off: %s", error)
        except OSError:
            pass  # it has gone
        finally:
            self._lose()

    def _receive(self, size: int) -> bytes:
        """So many bytes; empty if the front has gone."""
        received = bytearray(size)
        view = memoryview(received)
        while view:
            count = self._connection.recv_into(view)
            if count == 0:
                return b""
            view = view[count:]
        return bytes(received)

    def _hear(self, messages: list[FromFront]) -> None:
        plain: dict[tuple[int, bytes, str], list[Submit]] = {}
        """Sentences that are planned alike are queued together."""
        for message in messages:
            match message:
                case Submit(certain=True):
                    self._submit_one(message)
                case Submit():
                    plain.setdefault((message.level, message.options, message.priority), []).append(message)
                case Cancel():
                    if (future := self._sentences.get(message.sentence)) is not None:
                        future.cancel()
                case Open():
                    self._aside(self._open, message)
                case Close():
                    self._aside(self._close, message.level)
                case ReleaseMemory():
                    self._aside(self._release, message.level)
        for alike in plain.values():
            self._submit_all(alike)

    def _aside(self, work: Callable[..., None], asked: object) -> None:
        """Does what takes long in a thread of its own, so that sentences go on."""
        threading.Thread(target=work, args=(asked,), name="hmc-level", daemon=True).start()

    def _open(self, asked: Open) -> None:
        try:
            key = self._host.open(asked, self)
        except BaseException as error:
            if not isinstance(error, HmcError):
                log.error("level %s cannot be opened", asked.name, exc_info=error)
            self._to_write.put(refused(error, level=asked.level))
            return
        with self._changing:
            if not self._gone.is_set():
                self._levels[asked.level] = key
                self._to_write.put(Opened(asked.level, self._host.state(key, self)))
                return
        self._host.close(key, self)

    def _close(self, level: int) -> None:
        with self._changing:
            key = self._levels.pop(level, None)
        if key is not None:
            self._host.close(key, self)
        self._to_write.put(Closed(level))

    def _release(self, level: int) -> None:
        with suppress(UnavailableError):
            self._engine(level).release_memory()

    def _submit_all(self, alike: list[Submit]) -> None:
        """Queues sentences of the same level, options and priority."""
        first = alike[0]
        jobs: dict[int, Job] = {}
        try:
            engine = self._engine(first.level)
            priority = Priority(first.priority)
            planner = engine.planner(unpack_options(first.options), priority)
            for message in alike:
                jobs[message.sentence] = planner.job(
                    EncodedSentence(message.source, message.constraints or UNCONSTRAINED)
                )
            engine.submit_all(list(jobs.values()), priority=priority, caller=self._caller)
        except LinkError:
            raise
        except Exception as error:  # noqa: BLE001 - it is told the front
            for message in alike:
                self._refuse(message.sentence, error)
            return
        for sentence, job in jobs.items():
            self._wait_for(sentence, job.future)

    def _submit_one(self, asked: Submit) -> None:
        """Queues a sentence whose certain tokens are wanted."""
        try:
            future = self._engine(asked.level).submit(
                asked.source, unpack_options(asked.options), asked.constraints,
                partial(self._certain, asked.sentence), priority=Priority(asked.priority), caller=self._caller,
            )  # fmt: skip
        except LinkError:
            raise
        except Exception as error:  # noqa: BLE001 - it is told the front
            self._refuse(asked.sentence, error)
            return
        self._wait_for(asked.sentence, future)

    def _engine(self, level: int) -> Engine:
        key = self._levels.get(level)
        if key is None:
            raise UnavailableError("the level was closed meanwhile: try again")
        return self._host.engine(key)

    def _wait_for(self, sentence: int, future: Future[Decoded]) -> None:
        self._sentences[sentence] = future
        future.add_done_callback(partial(self._ended, sentence))

    def _refuse(self, sentence: int, error: Exception) -> None:
        if not isinstance(error, HmcError):
            log.error("a sentence cannot be begun", exc_info=error)
        self._to_write.put(refused(error, sentence=sentence))

    # ---- writing ----

    def _certain(self, sentence: int, ids: tuple[int, ...]) -> None:
        self._to_write.put(Certain(sentence, ids))

    def _ended(self, sentence: int, future: Future[Decoded]) -> None:
        if self._sentences.pop(sentence, None) is None or future.cancelled():
            return
        error = future.exception()
        self._to_write.put(done(sentence, future.result()) if error is None else refused(error, sentence=sentence))

    def _write(self) -> None:
        """Everything that waits goes in one frame."""
        waits = self._to_write
        try:
            while True:
                messages: list[Message] = []
                message = waits.get()
                while message is not None:
                    messages.append(message)
                    if waits.empty():
                        break
                    message = waits.get()
                if messages:
                    self._connection.sendall(frame(messages))
                if message is None:
                    return
        except OSError:
            pass  # it has gone
        except LinkError as error:
            log.error("a front is cut off: %s", error)
        finally:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)  # ends the reading thread

    def _report(self) -> None:
        while not self._gone.wait(STATE_S):
            self._host.end_with_cuda()
            with self._changing:
                states = {number: self._host.state(key, self) for number, key in self._levels.items()}
            self._to_write.put(States(states, process_bytes()))

    def _lose(self) -> None:
        """The front has gone, and with it all that it had."""
        with self._changing:
            self._gone.set()
            levels = list(self._levels.values())
            self._levels.clear()
        self._to_write.put(None)
        for future in list(self._sentences.values()):
            future.cancel()
        for key in levels:
            self._host.close(key, self)
        self._connection.close()

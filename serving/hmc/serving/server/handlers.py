"""What each call does, in the domain's words: no gRPC here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from weakref import WeakKeyDictionary

from hmc.artifact.errors import (
    DeviceUnavailableError,
    InvalidRequestError,
    LevelNotLoadedError,
    OverloadedError,
    UnavailableError,
)
from hmc.serving.answers import Answer, LevelInfo, LevelList
from hmc.serving.host import ModelHost
from hmc.serving.loaded import Lease, Slot
from hmc.serving.memory import process_bytes
from hmc.serving.options import DecodeOptions, Target
from hmc.serving.results import Translation
from hmc.serving.selection import Selector
from hmc.serving.server.answer_room import AnswerRoom
from hmc.serving.server.metrics import Metrics, Request
from hmc.serving.server.own_thread import in_own_thread
from hmc.serving.server.room import Room
from hmc.serving.server.settings import ServerSettings

log = logging.getLogger(__name__)

CHUNK, CHUNK_CHARACTERS = 32, 16384
"""Texts handed to a level before other calls get their turn, and their characters."""
IN_A_HURRY = 32
"""Texts of a call that is in a hurry; longer lists are patient, as streams are."""


class Handlers:
    """Translates with the host's levels, and changes what is loaded. Everything runs on one event loop."""

    def __init__(self, host: ModelHost, settings: ServerSettings, metrics: Metrics) -> None:
        self._host, self._settings, self._metrics = host, settings, metrics
        self._rooms: WeakKeyDictionary[Slot, Room] = WeakKeyDictionary()

    def request(self) -> AbstractContextManager[Request]:
        """Counts what happens inside as one request; what the methods below note about it is in what this gives."""
        return self._metrics.request()

    async def translate(
        self,
        request: Request,
        texts: Sequence[str],
        selector: Selector,
        options: DecodeOptions,
        targets: Sequence[Target],
    ) -> Answer:
        """All texts at one level, or an error: InvalidRequestError (naming the text), LevelNotFoundError,
        LevelNotLoadedError, OverloadedError, UnavailableError. Cancelling it cancels every text."""
        self._check_count(len(texts))
        with await self._lease(selector, patient=len(texts) > IN_A_HURRY) as lease:
            request.at(lease)
            translations = await _run(lease, texts, options, targets)
            request.answer = _answer(translations, lease)
        return request.answer

    async def translate_one(
        self,
        request: Request,
        text: str,
        selector: Selector,
        options: DecodeOptions,
        target: Target,
        begun: Callable[[], None],
    ) -> Answer:
        """One text of a stream; errors as `translate`, but a full queue is waited for. Calls `begun` once the text is
        queued."""
        with await self._lease(selector, patient=True) as lease:
            request.at(lease)
            room = self._rooms.setdefault(lease.slot, Room())
            future = await room.submit(lease, text, options, target)
            begun()
            request.answer = _answer([await _wait(future, AnswerRoom())], lease)
        return request.answer

    async def translate_tokens(
        self, request: Request, text: str, selector: Selector, options: DecodeOptions, target: Target
    ) -> AsyncIterator[str | Answer]:
        """What is certain of one translation as soon as it is, and at last the answer; errors as `translate`."""
        with await self._lease(selector, patient=False) as lease:
            request.at(lease)
            loop, heard = asyncio.get_running_loop(), asyncio.Queue[str | None]()

            def hear(piece: str | None) -> None:
                loop.call_soon_threadsafe(heard.put_nowait, piece)

            future = lease.submit(text, options, target, hear)
            future.add_done_callback(lambda _: hear(None))
            try:
                while (piece := await heard.get()) is not None:
                    yield piece
                request.answer = _answer([await _wait(future, AnswerRoom())], lease)
            finally:
                future.cancel()
        yield request.answer

    def _check_count(self, texts: int) -> None:
        most = min(self._settings.max_texts_per_call, self._settings.queue_size)  # more would never find room
        if texts == 0:
            raise InvalidRequestError("texts is empty: send at least one text")
        if texts > most:
            raise InvalidRequestError(
                f"{texts} texts in one call, and {most} are the most: split the list into several calls, or use "
                "TranslateStream, which has no limit"
            )

    async def _lease(self, selector: Selector, *, patient: bool) -> Lease:
        while True:
            try:
                return self._host.lease(selector, patient=patient)
            except LevelNotLoadedError as error:
                if not self._host.lazy:
                    raise
                missing = error.level
            try:
                await asyncio.to_thread(self._host.load, missing)
            except DeviceUnavailableError as error:
                if selector.name is not None:
                    raise
                log.warning("level %s is left out: %s", missing, error)  # the selector means another one from now on

    async def levels(self) -> LevelList:
        """The levels of the bundle, loaded or not, and the server's memory."""
        return LevelList.of(self._host.status(), await asyncio.to_thread(process_bytes))

    async def load(self, name: str) -> LevelInfo:
        """Errors as `ModelHost.load`."""
        status = await in_own_thread(self._host.load, name)
        return LevelInfo.of(status.level, status)

    async def unload(self, name: str) -> LevelInfo:
        """Errors as `ModelHost.unload`."""
        status = await in_own_thread(self._host.unload, name)
        return LevelInfo.of(status.level, status)

    async def reload(self, path: Path | None) -> LevelList:
        """Errors as `ModelHost.reload`."""
        return LevelList.of(await in_own_thread(self._host.reload, path))


async def _run(
    lease: Lease, texts: Sequence[str], options: DecodeOptions, targets: Sequence[Target]
) -> list[Translation]:
    """Every text or none: when one fails or the caller goes away, the others are cancelled."""
    futures: list[Future[Translation]] = []
    room = AnswerRoom()
    read = 0
    try:
        for index, (text, target) in enumerate(zip(texts, targets, strict=True)):
            futures.append(_submit(lease, index, text, options, target))
            read += 1 + CHUNK * (len(text) + len(target.text)) // CHUNK_CHARACTERS
            if read >= CHUNK:
                read = 0
                await asyncio.sleep(0)
        return await asyncio.gather(*(_wait(future, room) for future in futures))
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _submit(lease: Lease, index: int, text: str, options: DecodeOptions, target: Target) -> Future[Translation]:
    try:
        return lease.submit(text, options, target)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"texts[{index}]: {error}") from error
    except OverloadedError as error:
        raise OverloadedError(f"texts[{index}]: {error}") from error


async def _wait(future: Future[Translation], room: AnswerRoom) -> Translation:
    """Waits; being cancelled cancels the future. A level that stops without us is UnavailableError; InvalidRequestError
    when an answer with this translation could not be sent."""
    try:
        return room.add(await asyncio.wrap_future(future))
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise UnavailableError("the server is shutting down; try again at another one") from None


def _answer(translations: Sequence[Translation], lease: Lease) -> Answer:
    computed = [t for t in translations if not t.blank]
    queue_s = min((t.queue_s for t in computed), default=0.0)
    end_s = max((t.queue_s + t.compute_s for t in computed), default=0.0)
    times = 1000.0 * queue_s, 1000.0 * (end_s - queue_s)
    return Answer(tuple(translations), lease.level.name, lease.bundle_version, *times)

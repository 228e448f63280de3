"""What each call of the service does, without gRPC: plain data in, plain data out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, aclosing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary, WeakValueDictionary

from hmc.artifact.errors import (
    DeadlineExceededError,
    DeviceUnavailableError,
    InvalidRequestError,
    LevelNotLoadedError,
    OverloadedError,
    PermissionDeniedError,
    TooLargeError,
    Violation,
)
from hmc.engine.requests.caller import Caller, Priority
from hmc.engine.requests.options import DecodeOptions
from hmc.engine.runtime.process_memory import process_bytes
from hmc.serving.documents.documents import DocumentTranslator, check_document, check_keep, split_texts, with_text_index
from hmc.serving.documents.keeping import Submit
from hmc.serving.documents.splitting import DocumentBuilder, Splitter, with_segment
from hmc.serving.levels.host import ModelHost
from hmc.serving.levels.models import Models
from hmc.serving.levels.slots import Lease, LevelStatus, Slot
from hmc.serving.requests.options import Target, TextOptions
from hmc.serving.requests.results import (
    Answer,
    DocumentPiece,
    LevelInfo,
    LevelList,
    ModelInfo,
    ServerStatus,
    Translation,
)
from hmc.serving.requests.selectors import Selector
from hmc.serving.server.observing.metrics import Metrics, RequestRecord
from hmc.serving.server.settings import ServerSettings
from hmc.serving.server.streams import StreamText, WaitingLine, answer_of, out_of_time
from hmc.serving.server.threads import Arrivals, ChangeThread
from hmc.serving.wire.rules import AnswerSize

log = logging.getLogger(__name__)

CHUNK_TEXTS = 32
CHUNK_CHARACTERS = 16384
"""A call queues this many texts, or texts of this many characters, before the event loop serves other calls."""
MAX_INTERACTIVE_TEXTS = 32
"""Most texts of an interactive call. Longer lists let interactive texts pass, as streams do."""
MAX_INTERACTIVE_CHARACTERS = 16384
"""Most characters of the texts of an interactive call together."""


class Handlers:
    """Translates with the levels of all models, and changes what is loaded. All calls run on one event loop."""

    def __init__(
        self, models: Models, settings: ServerSettings, metrics: Metrics, others_bytes: Callable[[], int] = int
    ) -> None:
        """others_bytes: memory of the processes that work for this one."""
        self._models = models
        self._settings = settings
        self._metrics = metrics
        self._others_bytes = others_bytes
        self._changes = ChangeThread()
        self._arrivals = Arrivals()
        # (model, level) → its load, which many calls may await
        self._loading: dict[tuple[str, str], asyncio.Future[LevelStatus]] = {}
        self._lines: WeakKeyDictionary[Slot, WeakValueDictionary[Caller, WaitingLine]] = WeakKeyDictionary()
        """Level → caller → its line, while one of its texts is under way. Texts hold their line."""

    def record(self) -> RequestRecord:
        """A request, counted when its `with` block is left. The methods below write into it what they learn."""
        return RequestRecord(self._metrics.ended)

    async def translate(
        self,
        record: RequestRecord,
        texts: Sequence[str],
        selector: Selector,
        options: DecodeOptions,
        targets: Sequence[Target],
        text_options: TextOptions | None = None,
    ) -> Answer:
        """Translates all texts at one level, or raises. Cancelling it cancels all texts.

        text_options: how texts are divided. None: they are not, and one that is too long is cut.

        Raises InvalidRequestError (its message names the text), LevelNotFoundError, LevelNotLoadedError,
        OverloadedError and UnavailableError.
        """
        characters = sum(map(len, texts))
        long = len(texts) > MAX_INTERACTIVE_TEXTS or characters > MAX_INTERACTIVE_CHARACTERS
        priority = Priority.STANDARD if long else Priority.INTERACTIVE
        with await self._lease(record, selector, priority, characters) as lease:
            lease.check_space()  # before the texts are divided and encoded
            if text_options is None:
                translations = await self._each_whole(lease, texts, options, targets)
            else:
                translations = await self._each_divided(lease, texts, options, targets, text_options)
            record.answer = answer_of(translations, lease)
        return record.answer

    async def _each_whole(
        self, lease: Lease, texts: Sequence[str], options: DecodeOptions, targets: Sequence[Target]
    ) -> list[Translation]:
        """Translates every text as one sentence. If one fails, or the call is cancelled, all others are cancelled.

        Raises UnavailableError if the level was stopped meanwhile, and InvalidRequestError if the answer gets too
        large.
        """
        futures: list[Future[Translation]] = []
        submitted = 0
        try:
            for index, (text, target) in enumerate(zip(texts, targets, strict=True)):
                if submitted >= CHUNK_TEXTS:
                    submitted = 0
                    await asyncio.sleep(0)
                submitted += 1 + CHUNK_TEXTS * (len(text) + len(target.text)) // CHUNK_CHARACTERS
                try:
                    futures.append(lease.submit(text, options, target, timed=True))
                except (InvalidRequestError, OverloadedError, DeadlineExceededError) as error:
                    raise with_text_index(index, error) from error
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return await self._arrivals.all(futures, AnswerSize().add)

    async def _each_divided(
        self,
        lease: Lease,
        texts: Sequence[str],
        options: DecodeOptions,
        targets: Sequence[Target],
        text_options: TextOptions,
    ) -> list[Translation]:
        """Translates every text, divided as it needs. Errors: see `_each_whole`.

        If no text is divided, all are submitted at once. Otherwise at most `stream_window` sentences are under way: the
        first one is refused if the queue is full, and the others wait for a place.
        """
        check_keep(options, text_options)
        splitter = Splitter(lease.slot.translator.source, options, text_options, lease.code)
        splits = await split_texts(splitter, texts)
        total = AnswerSize()
        if all(split.whole for split in splits) and not text_options.keep:
            done = await self._each_whole(lease, texts, options, targets)
            if not text_options.return_segments:
                return done
            return [total.add(with_segment(*pair)) for pair in zip(splits, done, strict=True)]
        size = None if text_options.keep else AnswerSize()  # of what is submitted with `keep` most is dropped again
        translator = DocumentTranslator(splitter, self._submitter(lease, size, wait_at_first=False))
        async with aclosing(translator.translate(splits, targets, self._settings.stream_window)) as results:
            return [total.add(translation) async for translation in results]

    async def translate_document(
        self, record: RequestRecord, text: str, selector: Selector, options: DecodeOptions, text_options: TextOptions
    ) -> AsyncGenerator[DocumentPiece]:
        """Yields the pieces of a document's translation in order. A full queue makes it wait. Errors: see `translate`,
        except OverloadedError."""
        check_document(options, text_options)
        with await self._lease(record, selector, Priority.BULK, len(text)) as lease:
            builder = DocumentBuilder(keep=text_options.keep)
            splitter = Splitter(lease.slot.translator.source, options, text_options, lease.code)
            translator = DocumentTranslator(splitter, self._submitter(lease, None, wait_at_first=True))
            async with aclosing(translator.document(text, builder)) as pieces:
                async for piece in pieces:
                    record.piece()
                    yield replace(piece, level=lease.level.name, bundle_version=lease.bundle_version)
            record.answer = answer_of([builder.translation(segments=False)], lease)

    def _submitter(self, lease: Lease, size: AnswerSize | None, *, wait_at_first: bool) -> Submit:
        """What translates the sentences of divided texts at a level: each waits for a place in the queue, but the first
        one is refused if it is full, unless `wait_at_first`. size: of the answer; None: it is not counted."""
        line = self._line(lease)
        first = not wait_at_first

        async def submit(text: str, options: DecodeOptions, target: Target) -> Translation:
            nonlocal first
            if first:
                future = lease.submit(text, options, target, timed=True)
                first = False
            else:
                future = await line.submit(lease, text, options, target)
            return (size or AnswerSize()).add(await self._arrivals.wrap(future))

        return submit

    def _line(self, lease: Lease) -> WaitingLine:
        lines = self._lines.setdefault(lease.slot, WeakValueDictionary())
        return lines.setdefault(lease.call.caller, WaitingLine())

    def stream_text(self, text_id: str) -> StreamText:
        """A text of a stream, to be counted as one request and begun by `begin_one`."""
        return StreamText(self._metrics.ended, text_id)

    async def begin_one(
        self,
        begun: StreamText,
        text: str,
        selector: Selector,
        options: DecodeOptions,
        target: Target,
        within_ms: int | None,
    ) -> None:
        """Begins one text of a stream; returns when it has a place in the queue of its level, for which it waits.

        within_ms: milliseconds that the text may take in all. Raises DeadlineExceededError if that is over before it
        has a place. Other errors: see `translate`, except OverloadedError.
        """
        until = None if within_ms is None else asyncio.get_running_loop().time() + within_ms / 1000.0
        try:
            async with asyncio.timeout_at(until) if until is not None else nullcontext():
                lease = await self._lease(begun, selector, Priority.BULK, len(text))
                future = await self._place(lease, text, options, target)
        except TimeoutError as error:
            raise out_of_time(within_ms or 0) from error
        begun.wait_for(self._arrivals.wrap(future), until, within_ms or 0)

    async def _place(self, lease: Lease, text: str, options: DecodeOptions, target: Target) -> Future[Translation]:
        """Queues a text of a stream, behind those of its caller that wait for a place."""
        if lease.call.caller not in self._lines.get(lease.slot, ()):
            with suppress(OverloadedError):
                return lease.submit(text, options, target, line=True)
        return await self._line(lease).submit(lease, text, options, target, line=True)

    async def translate_tokens(
        self, record: RequestRecord, text: str, selector: Selector, options: DecodeOptions, target: Target
    ) -> AsyncIterator[str | Answer]:
        """Yields each piece of a translation as soon as it is certain, and the answer last. Errors: see `translate`."""
        with await self._lease(record, selector, Priority.INTERACTIVE, len(text)) as lease:
            loop = asyncio.get_running_loop()
            pieces = asyncio.Queue[str | None]()

            def progress(piece: str | None) -> None:
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

            future = lease.submit(text, options, target, progress, timed=True, line=True)
            future.add_done_callback(lambda _: progress(None))
            try:
                while (piece := await pieces.get()) is not None:
                    record.piece()
                    yield piece
                record.answer = answer_of(await self._arrivals.all([future], AnswerSize().add), lease)
            finally:
                future.cancel()
        yield record.answer

    def check_count(self, texts: int) -> None:
        """Raises TooLargeError for more texts than one call may have. It is the first check of a request: the
        rules of fields take long to check in a list of millions."""
        most = min(self._settings.max_texts, self._settings.queue_size)  # more never fit into the queue
        if texts > most:
            message = (
                f"{texts} texts in one call, but at most {most} are allowed: split the list into several calls, or use "
                "TranslateStream, which has no limit"
            )
            raise TooLargeError(message, [Violation("texts", message)])

    async def _lease(self, record: RequestRecord, selector: Selector, priority: Priority, characters: int) -> Lease:
        """Leases the level that a request chooses, and records it. With `lazy`, the level is loaded first."""
        host, code = self._models.find(selector)
        without_device: dict[str, DeviceUnavailableError] = {}
        with ExitStack() as wanted:  # so that a level that was loaded for this call is not unloaded before it is leased
            while True:
                try:
                    lease = host.lease(selector, priority=priority, call=record.call, code=code, characters=characters)
                except LevelNotLoadedError as error:
                    if not host.lazy:
                        raise
                    missing = error.level
                else:
                    record.served_by(lease)
                    return lease
                if missing in without_device:  # it is the default level, so no other one can be chosen
                    raise without_device[missing]
                wanted.enter_context(host.cache.wanted(missing))
                try:
                    await self._load(host, missing)
                except DeviceUnavailableError as error:
                    if selector.name is not None:
                        raise
                    log.warning("level %s is left out: %s", missing, error)  # the selector now chooses another level
                    without_device[missing] = error

    async def _load(self, host: ModelHost, name: str) -> LevelStatus:
        """Loads a level once for all calls that wait for it. A call that is cancelled leaves the load running."""
        key = host.name, name
        if key not in self._loading:
            loading = asyncio.ensure_future(self._changes.run(host.load, name))
            self._loading[key] = loading
            loading.add_done_callback(lambda done: self._loaded(key, done))
        return await asyncio.shield(self._loading[key])

    def _loaded(self, key: tuple[str, str], loading: asyncio.Future[LevelStatus]) -> None:
        del self._loading[key]
        if not loading.cancelled():
            loading.exception()  # marks it as seen, if no call is left to see it

    def models(self) -> list[ModelInfo]:
        """The models of the server, in their order."""
        return [status.info() for status in self._models.statuses()]

    def model_name(self, model: str) -> str:
        """The name of a model; empty: of the first one. Raises ModelNotFoundError."""
        return self._models.named(model).name

    async def levels(self, model: str = "") -> LevelList:
        """The levels of a model, loaded or not, and the memory of the server's process.

        model: its name; empty: the first one. The same holds below, and each method raises ModelNotFoundError.
        """
        host = self._models.named(model)
        return host.status().listed(await self._process_bytes())

    async def status(self, model: str = "") -> ServerStatus:
        """What the loaded levels of a model do now. model: its name; empty: of all models."""
        statuses = [self._models.named(model).status()] if model else self._models.statuses()
        loads = tuple(load for status in statuses for load in status.loads())
        devices = {use.device: use for status in statuses for use in status.devices}
        return ServerStatus(loads, await self._process_bytes(), tuple(devices.values()))

    async def _process_bytes(self) -> int:
        return await asyncio.to_thread(process_bytes) + self._others_bytes()

    async def load(self, name: str, model: str = "") -> LevelInfo:
        """Loads a level. Errors: see `ModelHost.load`."""
        return await self._load(self._models.named(model), name)

    async def unload(self, name: str, model: str = "") -> LevelInfo:
        """Takes a level out of service, and returns when it is freed. Errors: see `ModelHost.begin_unload`."""
        status, freed = await self._changes.run(self._models.named(model).begin_unload, name)
        await asyncio.gather(*map(asyncio.wrap_future, freed))
        return status

    async def set_default(self, name: str, model: str = "") -> LevelInfo:
        """Makes a level the default one. With `lazy` it is loaded: in another process, a call may have done so. Errors:
        see `ModelHost.set_default`."""
        host = self._models.named(model)
        if not host.lazy:
            return await self._changes.run(host.set_default, name)
        with host.cache.wanted(name):  # so that another load does not take its memory in between
            await self._load(host, name)
            return await self._changes.run(host.set_default, name)

    async def reload(self, path: Path | None, model: str = "") -> LevelList:
        """Replaces the bundle of a model. Raises PermissionDeniedError for a path that is not below the root of
        bundles. Other errors: see `ModelHost.reload`."""
        host = self._models.named(model)
        if path is not None:
            _check_below(self._settings.bundle_root or host.root, path)
        with self._metrics.reloading(host.name):
            return (await self._changes.run(host.reload, path)).listed()

    async def unload_idle(self, unused_s: float) -> None:
        """Unloads levels that nobody uses, see `Models.unload_idle`. Does not wait until they are free."""
        await self._changes.run(self._models.unload_idle, unused_s)


def _check_below(root: Path, bundle: Path) -> None:
    """Raises PermissionDeniedError unless `bundle` lies below `root`, after symbolic links of both are followed.

    It reads nothing of the bundle, and the error is the same whether there is one or not.
    """
    try:
        inside = bundle.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError, ValueError):  # a circle of links; a character that no path has
        inside = False
    if not inside:
        raise PermissionDeniedError(
            f"bundle {bundle} is not below {root}, the folder that bundles may be loaded from: put it there, or start "
            "the server with another bundle_root"
        )

"""The two places that translate for the command line: a server, or a bundle loaded here. Both answer in order, while
they still read."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, repeat, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from hmc.artifact.bundle import Manifest, read_manifest
from hmc.artifact.errors import HmcError, InvalidRequestError, LevelNotFoundError
from hmc.cli.connection import connected
from hmc.serving.answers import StreamAnswer
from hmc.serving.options import DecodeOptions, Target
from hmc.serving.results import Partial, Translation
from hmc.serving.selection import AutoPolicy, Candidate, Selector, choose, runs_on
from hmc.serving.translator import Translator

if TYPE_CHECKING:
    from hmc.serving.client import Client

IN_FLIGHT = 256
"""Texts under way at a time: what was read and not yet written."""
Answers: TypeAlias = Generator[StreamAnswer, None, None]
READER_SECONDS = 0.5
"""How long a thread that reads is waited for at the end: more than it computes for a line."""


@dataclass(frozen=True)
class Place:
    """Where to translate, as the command line says it."""

    server: str | None
    bundle: Path | None
    selector: Selector
    device: str = "auto"
    threads: int = 0
    workers: int = 1
    token: str | None = None
    tls_ca: Path | None = None
    timeout: float | None = None


class Desk(Protocol):
    """A place that is open. Every method raises the first error of a line, with its number if it is about the text."""

    def translate(self, lines: Iterator[str], options: DecodeOptions, prefix: str) -> Answers:
        """A translation of each line that begins with `prefix`, in order."""
        ...

    def stream(self, index: int, text: str, options: DecodeOptions, prefix: str) -> Iterator[Partial]:
        """What is certain of the translation of line `index` + 1 as soon as it is, and at last all of it."""
        ...

    def score(self, texts: Sequence[str], references: Sequence[str], options: DecodeOptions) -> list[StreamAnswer]:
        """The scores of given translations, at one level however often it is called."""
        ...


@contextmanager
def open_desk(place: Place) -> Iterator[Desk]:
    """Raises InvalidRequestError unless exactly one of server and bundle is named, and for options of the other; else
    as `Client`, `Translator`."""
    if (
        place.server is not None
        and place.bundle is None
        and (place.device != "auto" or place.threads or place.workers != 1)
    ):
        raise InvalidRequestError("--device, --threads and --workers are about --bundle: the server chose its own")
    if place.bundle is not None and place.server is None and (place.tls_ca is not None or place.timeout is not None):
        raise InvalidRequestError("--tls-ca and --timeout are about --server: leave them out with --bundle")
    if place.server is not None and place.bundle is None:
        with connected(place.server, place.token, place.tls_ca) as client:
            yield ServerDesk(client, place)
    elif place.bundle is not None and place.server is None:
        level = _level(read_manifest(place.bundle), place.selector, place.device)
        translator = Translator(place.bundle, level, device=place.device, threads=place.threads, workers=place.workers)
        try:
            yield BundleDesk(translator)
        finally:
            translator.close(drain=False)
    else:
        raise InvalidRequestError("give exactly one of --server HOST:PORT and --bundle DIR")


class ServerDesk:
    """Asks a server."""

    def __init__(self, client: Client, place: Place) -> None:
        self._client, self._selector, self._timeout = client, place.selector, place.timeout

    def translate(self, lines: Iterator[str], options: DecodeOptions, prefix: str) -> Answers:
        """See `Desk`."""
        answers = self._client.translate_stream(
            lines,
            self._selector,
            options,
            in_flight=IN_FLIGHT,
            target_prefixes=_prefixes(prefix),
            timeout=self._timeout,
        )
        return (_checked(answer) for answer in answers)

    def stream(self, index: int, text: str, options: DecodeOptions, prefix: str) -> Iterator[Partial]:
        """See `Desk`."""
        with _numbered(index):
            yield from self._client.translate_tokens(text, self._selector, options, self._timeout, target_prefix=prefix)

    def score(self, texts: Sequence[str], references: Sequence[str], options: DecodeOptions) -> list[StreamAnswer]:
        """See `Desk`."""
        answer = self._client.score(texts, references, self._selector, options, self._timeout)
        self._selector = Selector(name=answer.level)  # another choice under another load would give other scores
        return [StreamAnswer(n, t, None, answer.level, answer.bundle_version) for n, t in enumerate(answer)]


class BundleDesk:
    """Translates here."""

    def __init__(self, translator: Translator) -> None:
        self._translator = translator

    def translate(self, lines: Iterator[str], options: DecodeOptions, prefix: str) -> Answers:
        """See `Desk`."""
        waiting: queue.Queue[Future[Translation] | BaseException | None] = queue.Queue(IN_FLIGHT)
        over = threading.Event()

        def read() -> None:
            try:
                for text in takewhile(lambda _: not over.is_set(), lines):
                    waiting.put(self._submit(text, options, Target(prefix)))
                waiting.put(None)
            except BaseException as error:  # noqa: BLE001 - raised by the thread that writes
                waiting.put(error)

        # A thread of its own: answers are written while stdin is silent. A daemon: stdin cannot hold us.
        reader = threading.Thread(target=read, name="hmc-read", daemon=True)
        reader.start()
        try:
            for index in count():
                item = waiting.get()
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                yield _checked(self._answer(index, item))
        finally:
            over.set()
            _wait_for(reader, waiting)

    def stream(self, index: int, text: str, options: DecodeOptions, prefix: str) -> Iterator[Partial]:
        """See `Desk`."""
        with _numbered(index):
            yield from self._translator.stream(text, options, Target(prefix))

    def score(self, texts: Sequence[str], references: Sequence[str], options: DecodeOptions) -> list[StreamAnswer]:
        """See `Desk`."""
        level, version = self._translator.level.name, self._translator.manifest.version
        scored = self._translator.score(texts, references, options)
        return [StreamAnswer(n, translation, None, level, version) for n, translation in enumerate(scored)]

    def _submit(self, text: str, options: DecodeOptions, target: Target) -> Future[Translation]:
        try:
            return self._translator.submit(text, options, target)
        except HmcError as error:
            failed: Future[Translation] = Future()
            failed.set_exception(error)
            return failed

    def _answer(self, index: int, future: Future[Translation]) -> StreamAnswer:
        level, version = self._translator.level.name, self._translator.manifest.version
        try:
            return StreamAnswer(index, future.result(), None, level, version)
        except HmcError as error:
            return StreamAnswer(index, None, error, level, version)


def _wait_for(reader: threading.Thread, waiting: queue.Queue[Any]) -> None:
    """Returns when the thread has ended, or waits for a line that may never come: a process must not end while one of
    its threads computes."""
    end = time.monotonic() + READER_SECONDS
    while reader.is_alive() and time.monotonic() < end:
        with contextlib.suppress(queue.Empty):
            while True:
                waiting.get_nowait()
        reader.join(0.01)


def _prefixes(prefix: str) -> Iterator[str] | None:
    return repeat(prefix) if prefix else None


def _level(manifest: Manifest, selector: Selector, device: str) -> str | None:
    if selector == Selector():
        return None
    if selector.name is not None:
        return manifest.level(selector.name).name
    candidates = [Candidate(level) for level in manifest.levels if runs_on(device, level)]
    if not candidates:
        raise LevelNotFoundError(f"this bundle has no level for --device {device}; see `hmc levels`")
    return choose(selector, candidates, AutoPolicy()).name


def _checked(answer: StreamAnswer) -> StreamAnswer:
    """The answer; an error in it is raised, with the number of its line if it is about the text."""
    if answer.error is not None:
        with _numbered(answer.index):
            raise answer.error
    return answer


@contextmanager
def _numbered(index: int) -> Iterator[None]:
    """Gives the errors inside that are about a text the number of its line."""
    try:
        yield
    except InvalidRequestError as error:
        raise InvalidRequestError(f"line {index + 1}: {error}") from error

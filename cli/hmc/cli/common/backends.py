"""The two backends that translate for a command: a server, and a bundle loaded in this process.

Both answer in the order of the lines, and they answer the first lines while later ones are still being read.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count, repeat, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from hmc.artifact.bundle.manifest import Manifest, read_manifest
from hmc.artifact.errors import HmcError, InvalidRequestError, LevelNotFoundError
from hmc.cli.common.options import BackendOptions, chosen_server, connected
from hmc.engine.requests.options import DecodeOptions
from hmc.engine.support import AnyExecutor
from hmc.serving.documents.local import translate_document
from hmc.serving.levels.choosing import LevelCandidate, choose, runs_on
from hmc.serving.levels.latency import RequestTimes
from hmc.serving.requests.options import Segmentation, Target, TextOptions
from hmc.serving.requests.results import DocumentPiece, Partial, StreamAnswer, Translation
from hmc.serving.requests.selectors import OF_THE_MODEL, Selector
from hmc.serving.text.languages import Languages, with_code
from hmc.serving.translator import Translator

if TYPE_CHECKING:
    from hmc.serving.client import Client

IN_FLIGHT = 256
"""Lines that have been read and whose translations are not written yet, at most."""
Answers: TypeAlias = Generator[StreamAnswer, None, None]
READER_SECONDS = 0.5
"""Seconds that closing waits for the reading thread. It needs less to submit one line."""


class Backend(Protocol):
    """A server or a bundle, connected or loaded.

    Every method raises the error of the first line that fails. If the error is about the text, it names the line.
    """

    def translate(self, lines: Iterator[str], options: DecodeOptions, prefix: str, first: int = 0) -> Answers:
        """The translations of the lines, in their order. Every translation begins with `prefix`. first: lines of the
        input before these, for errors."""
        ...

    def text(
        self, index: int, text: str, options: DecodeOptions, prefix: str, segmentation: Segmentation
    ) -> StreamAnswer:
        """The translation of a text of any length, divided as `Client.translate` does. `index` + 1 is its number."""
        ...

    def stream(self, index: int, text: str, options: DecodeOptions, prefix: str) -> Iterator[Partial]:
        """Pieces of the translation of one text as they become certain, then the whole. `index` + 1 is its line."""
        ...

    def document(self, text: str, options: DecodeOptions, texts: TextOptions) -> Iterator[DocumentPiece]:
        """The pieces of a translated text of any length, in order."""
        ...

    def score(self, texts: Sequence[str], references: Sequence[str], options: DecodeOptions) -> list[StreamAnswer]:
        """The scores of given translations. All calls are scored at the same level."""
        ...


@contextmanager
def open_backend(options: BackendOptions, workers: int = 0) -> Iterator[Backend]:
    """Connects to the server or loads the bundle, and closes it at the end. workers: as `Translator` takes them.

    Raises InvalidRequestError unless exactly one of the two is given, and for options that belong to the other one.
    Raises also what `Client` and `Translator` raise.
    """
    selector = options.selector()
    server = chosen_server(options.server, options.bundle)
    if server is not None:
        if options.device != "auto" or options.threads or workers or options.executor != "auto":
            raise InvalidRequestError(
                "--device, --threads, --workers and --executor work only with --bundle: a server chose its own"
            )
        with connected(server, options.token, options.tls) as client:
            yield ServerBackend(client, options)
    elif options.bundle is not None:
        options.check_no_server("--bundle")
        manifest = read_manifest(options.bundle)
        level = level_of(manifest, selector, options.device)
        code = code_of(options.bundle, manifest, selector)
        translator = Translator(
            options.bundle,
            level,
            device=options.device,
            threads=options.threads,
            workers=workers,
            executor=cast(AnyExecutor, options.executor),  # the translator refuses what is none
        )
        try:
            yield BundleBackend(translator, code)
        finally:
            translator.close(drain=False)


class ServerBackend:
    """Translates through a server."""

    def __init__(self, client: Client, options: BackendOptions) -> None:
        if options.timeout is not None and not options.timeout > 0:
            raise InvalidRequestError(f"--timeout {options.timeout:g}: choose more than 0 seconds, or leave it out")
        self._client = client
        self._selector = options.selector()
        self._given = options.timeout
        self._begun = time.monotonic()

    @property
    def _timeout(self) -> float | None:
        """Seconds that the command has left, which is what `--timeout` bounds. A call with none left fails at once."""
        if self._given is None:
            return None
        return max(self._begun + self._given - time.monotonic(), 0.001)

    def translate(self, lines: Iterator[str], options: DecodeOptions, prefix: str, first: int = 0) -> Answers:
        """See `Backend`."""
        answers = self._client.translate_stream(
            lines,
            self._selector,
            options,
            in_flight=IN_FLIGHT,
            target_prefixes=_prefixes(prefix),
            timeout=self._timeout,
        )
        return (_checked(answer, first) for answer in answers)

    def stream(self, index: int, text: str, options: DecodeOptions, prefix: str) -> Iterator[Partial]:
        """See `Backend`."""
        with _numbered(index):
            yield from self._client.translate_tokens(text, self._selector, options, self._timeout, target_prefix=prefix)

    def text(
        self, index: int, text: str, options: DecodeOptions, prefix: str, segmentation: Segmentation
    ) -> StreamAnswer:
        """See `Backend`."""
        prefixes = [prefix] if prefix else ()
        with _numbered(index, "text"):
            answer = self._client.translate(
                [text], self._selector, options, self._timeout, target_prefixes=prefixes, segmentation=segmentation
            )
        return StreamAnswer(index, answer[0], None, answer.level, answer.bundle_version)

    def document(self, text: str, options: DecodeOptions, texts: TextOptions) -> Iterator[DocumentPiece]:
        """See `Backend`."""
        return self._client.translate_document(
            text, self._selector, options, self._timeout, keep=texts.keep, segmentation=texts.segmentation
        )

    def score(self, texts: Sequence[str], references: Sequence[str], options: DecodeOptions) -> list[StreamAnswer]:
        """See `Backend`."""
        answer = self._client.score(texts, references, self._selector, options, self._timeout)
        # The server could choose another level under another load.
        chosen = {name: getattr(self._selector, name) for name in OF_THE_MODEL}
        self._selector = Selector(name=answer.level, **chosen)
        return [StreamAnswer(n, t, None, answer.level, answer.bundle_version) for n, t in enumerate(answer)]


class BundleBackend:
    """Translates with a bundle that is loaded in this process."""

    def __init__(self, translator: Translator, code: str = "") -> None:
        """code: the token of the target language, with which every text begins; empty: none."""
        self._translator = translator
        self._code = code

    def translate(self, lines: Iterator[str], options: DecodeOptions, prefix: str, first: int = 0) -> Answers:
        """See `Backend`."""
        waiting: queue.Queue[Future[Translation] | BaseException | None] = queue.Queue(IN_FLIGHT)
        over = threading.Event()

        def read() -> None:
            try:
                for text in takewhile(lambda _: not over.is_set(), lines):
                    waiting.put(self._submit(text, options, Target(prefix)))
                waiting.put(None)
            except BaseException as error:  # noqa: BLE001 - raised by the thread that yields answers
                waiting.put(error)

        # A thread reads, so that answers are written while stdin is silent. It is a daemon, so that a read of stdin
        # that never returns does not keep the process alive.
        reader = threading.Thread(target=read, name="hmc-read", daemon=True)
        reader.start()
        try:
            for index in count():
                item = waiting.get()
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                yield _checked(self._answer(index, item), first)
        finally:
            over.set()
            _wait_for(reader, waiting)

    def stream(self, index: int, text: str, options: DecodeOptions, prefix: str) -> Iterator[Partial]:
        """See `Backend`."""
        with _numbered(index):
            yield from self._translator.stream(with_code(text, self._code), options, Target(prefix))

    def text(
        self, index: int, text: str, options: DecodeOptions, prefix: str, segmentation: Segmentation
    ) -> StreamAnswer:
        """See `Backend`."""
        prefixes = [prefix] if prefix else ()
        with _numbered(index, "text"):
            found = self._translator.translate([with_code(text, self._code)], options, prefixes, segmentation)
        return StreamAnswer(index, found[0], None, self._translator.level.name, self._translator.manifest.version)

    def document(self, text: str, options: DecodeOptions, texts: TextOptions) -> Iterator[DocumentPiece]:
        """See `Backend`."""
        return translate_document(self._translator, text, options, texts, self._code)

    def score(self, texts: Sequence[str], references: Sequence[str], options: DecodeOptions) -> list[StreamAnswer]:
        """See `Backend`."""
        level = self._translator.level.name
        version = self._translator.manifest.version
        scored = self._translator.score([with_code(text, self._code) for text in texts], references, options)
        return [StreamAnswer(n, translation, None, level, version) for n, translation in enumerate(scored)]

    def _submit(self, text: str, options: DecodeOptions, target: Target) -> Future[Translation]:
        try:
            return self._translator.submit(with_code(text, self._code), options, target, line=True)
        except HmcError as error:
            failed: Future[Translation] = Future()
            failed.set_exception(error)
            return failed

    def _answer(self, index: int, future: Future[Translation]) -> StreamAnswer:
        level = self._translator.level.name
        version = self._translator.manifest.version
        try:
            return StreamAnswer(index, future.result(), None, level, version)
        except HmcError as error:
            return StreamAnswer(index, None, error, level, version)


def _wait_for(reader: threading.Thread, waiting: queue.Queue[Any]) -> None:
    """Waits until the thread has ended, or for READER_SECONDS if it waits for a line that may never come.

    The thread may be in the middle of tokenising a line, and the process must not end while it is.
    """
    end = time.monotonic() + READER_SECONDS
    while reader.is_alive() and time.monotonic() < end:
        with contextlib.suppress(queue.Empty):
            while True:
                waiting.get_nowait()
        reader.join(0.01)


def _prefixes(prefix: str) -> Iterator[str] | None:
    return repeat(prefix) if prefix else None


def level_of(manifest: Manifest, selector: Selector, device: str) -> str | None:
    """The name of the level that a selector chooses. None: the default level. Raises LevelNotFoundError."""
    if selector.default_level:
        return None
    if selector.name is not None:
        return manifest.level(selector.name).name
    fitting = [level for level in manifest.levels if runs_on(device, level)]
    times = RequestTimes(fitting).p95_ms(characters=0)
    candidates = [LevelCandidate(level, p95_ms=times.get(level.name)) for level in fitting]
    if not candidates:
        raise LevelNotFoundError(f"this bundle has no level for --device {device}; see `hmc levels`")
    return choose(selector, candidates).name


def code_of(bundle: Path, manifest: Manifest, selector: Selector) -> str:
    """The token of the target language that a selector chooses; empty if it chooses no language. Raises
    InvalidRequestError if the bundle has not the languages of the selector."""
    languages = Languages.read(bundle, manifest)
    if selector.source_language is not None and not languages.reads(selector.source_language):
        raise InvalidRequestError(f"--from {selector.source_language}: this bundle translates {languages}")
    return languages.code(selector.target_language)


def _checked(answer: StreamAnswer, first: int) -> StreamAnswer:
    """Returns the answer, or raises its error, with the number of its line if the error is about the text."""
    if answer.error is not None:
        with _numbered(first + answer.index):
            raise answer.error
    return answer


@contextmanager
def _numbered(index: int, what: str = "line") -> Iterator[None]:
    """Adds the number of the line, or of another kind of text, to errors about a text that are raised inside."""
    try:
        yield
    except InvalidRequestError as error:
        name = f"{what} {index + 1}"
        said = [
            found.named(name) if found.field.startswith("text") else f"{name}: {found.description}"
            for found in error.violations
        ]
        raise InvalidRequestError("; ".join(said) or f"{name}: {error}") from error

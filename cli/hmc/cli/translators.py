"""The two ways of `hmc translate`: ask a server, or load a bundle. Both answer in order while they still read."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

from hmc.artifact.bundle import Manifest, read_manifest
from hmc.artifact.errors import HmcError, InvalidRequestError, LevelNotFoundError
from hmc.serving.answers import StreamAnswer
from hmc.serving.options import DecodeOptions
from hmc.serving.results import Translation
from hmc.serving.selection import AutoPolicy, Candidate, Selector, choose, runs_on
from hmc.serving.translator import Translator

IN_FLIGHT = 256
"""Texts under way at a time: what was read and not yet written."""


def from_server(
    lines: Iterator[str],
    address: str,
    selector: Selector,
    options: DecodeOptions,
    *,
    token: str | None,
    tls_ca: Path | None,
    timeout: float | None,
) -> Iterator[StreamAnswer]:
    """Streams the lines to a server. Raises as `Client.translate_stream`, and the first error of a line."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from hmc.serving.client import Client

    with Client(address, token=token, tls_ca=tls_ca) as client:
        for answer in client.translate_stream(lines, selector, options, in_flight=IN_FLIGHT, timeout=timeout):
            yield _checked(answer)


def from_bundle(
    lines: Iterator[str], path: Path, selector: Selector, options: DecodeOptions, *, device: str, threads: int
) -> Iterator[StreamAnswer]:
    """Loads one level and translates the lines with it. Raises as `Translator`, and the first error of a line."""
    level = _level(read_manifest(path), selector, device)
    translator = Translator(path, level, device=device, threads=threads)
    version = translator.manifest.version
    waiting: queue.Queue[Future[Translation] | BaseException | None] = queue.Queue(IN_FLIGHT)

    def read() -> None:
        try:
            for text in lines:
                waiting.put(_submit(translator, text, options))
            waiting.put(None)
        except BaseException as error:  # noqa: BLE001 - raised by the thread that writes
            waiting.put(error)

    # A thread of its own, so that answers are written while stdin is silent; a daemon, so that stdin cannot hold us.
    threading.Thread(target=read, name="hmc-read", daemon=True).start()
    try:
        index = 0
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield _checked(_answer(index, item, translator.level.name, version))
            index += 1
    finally:
        translator.close(drain=False)


def _level(manifest: Manifest, selector: Selector, device: str) -> str | None:
    if selector == Selector():
        return None
    if selector.name is not None:
        return manifest.level(selector.name).name
    candidates = [Candidate(level) for level in manifest.levels if runs_on(device, level)]
    if not candidates:
        raise LevelNotFoundError(f"this bundle has no level for --device {device}; see `hmc levels`")
    return choose(selector, candidates, AutoPolicy()).name


def _submit(translator: Translator, text: str, options: DecodeOptions) -> Future[Translation]:
    try:
        return translator.submit(text, options)
    except HmcError as error:
        failed: Future[Translation] = Future()
        failed.set_exception(error)
        return failed


def _answer(index: int, future: Future[Translation], level: str, version: str) -> StreamAnswer:
    try:
        return StreamAnswer(index, future.result(), None, level, version)
    except HmcError as error:
        return StreamAnswer(index, None, error, level, version)


def _checked(answer: StreamAnswer) -> StreamAnswer:
    """The answer; an error in it is raised, with the number of its line if it is about the text."""
    if isinstance(answer.error, InvalidRequestError):
        raise InvalidRequestError(f"line {answer.index + 1}: {answer.error}") from answer.error
    if answer.error is not None:
        raise answer.error
    return answer

"""Files that are translated line by line: written in order, whole lines only, and resumed where a run stopped.

The translation grows in `OUTPUT.part`. Beside it, `OUTPUT.part.json` says how far it is: lines, bytes and digests of
what was read and written, and the options. At the end `OUTPUT.part` becomes `OUTPUT`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, closing, suppress
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypedDict, Unpack

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.storage.files import errors_name, write_whole
from hmc.engine.requests.checks import decode_line, one_line
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.client import calls
from hmc.serving.client.calls import Level, Streaming
from hmc.serving.requests.results import StreamAnswer
from hmc.serving.requests.selectors import OF_THE_MODEL

if TYPE_CHECKING:
    from hmc.serving.client.aio import AsyncClient
    from hmc.serving.client.client import Client

SAVED_EVERY = 100
"""Lines after which the state is written. A run that is killed translates at most so many again."""
CHUNK = 1 << 20


@dataclass(frozen=True)
class FileProgress:
    """How far the translation of a file is."""

    lines: int = 0
    """Lines that are written."""
    source_bytes: int = 0
    """Bytes of the source that these lines have."""
    total_bytes: int = 0
    """Bytes of the whole source."""
    resumed_lines: int = 0
    """Lines that an earlier run had written."""


class FileOptions(TypedDict, total=False):
    """How a file is translated."""

    target_prefix: str
    """Every translation begins with this text."""
    restart: bool
    """Drop what an earlier run has left, instead of going on after its last line."""
    progress: Callable[[FileProgress], None] | None
    """Called after each line."""
    stream: Streaming
    """See `Streaming`; a file is always written in order."""


def translate_file(
    client: Client,
    source: Path | str,
    output: Path | str,
    level: Level = None,
    options: DecodeOptions | None = None,
    timeout: float | None = None,
    **more: Unpack[FileOptions],
) -> FileProgress:
    """Translates each line of a UTF-8 file to a line of `output`, with one stream and with bounded memory.

    A run that was stopped, also by a kill, goes on after its last line when it is started again with the same source
    and options. Until the end, lines are in `OUTPUT.part`. more: see `FileOptions`.

    Raises InvalidRequestError for a line that the server refuses, with its number, and for files that cannot be used or
    have changed since the last run; and what `Client.translate_stream` raises.
    """
    job, named = _job(source, output, level, options, more)
    with job, closing(client.translate_stream(job.texts(), level, options, timeout, **named)) as answers:
        for answer in answers:
            job.answered(answer)
        return job.finish()


async def translate_file_async(
    client: AsyncClient,
    source: Path | str,
    output: Path | str,
    level: Level = None,
    options: DecodeOptions | None = None,
    timeout: float | None = None,
    **more: Unpack[FileOptions],
) -> FileProgress:
    """As `translate_file`, for asyncio. Files are read and written on the event loop, a line at a time."""
    job, named = _job(source, output, level, options, more)
    with job:
        async with aclosing(client.translate_stream(job.texts(), level, options, timeout, **named)) as answers:
            async for answer in answers:
                job.answered(answer)
        return job.finish()


def _job(
    source: Path | str, output: Path | str, level: Level, options: DecodeOptions | None, more: FileOptions
) -> tuple[FileTranslation, dict[str, Any]]:
    """The run over the file, and the further arguments of its stream."""
    prefix = more.get("target_prefix", "")
    stream = more.get("stream", {})
    model = {key: value for key, value in stream.items() if key in OF_THE_MODEL}
    settings = calls.settings(level, options, **model)  # type: ignore[arg-type]  # texts, all three
    key = {name: message and message.SerializeToString(deterministic=True).hex() for name, message in settings.items()}
    job = FileTranslation(
        Path(source),
        Path(output),
        {**key, "target_prefix": prefix},
        restart=more.get("restart", False),
        progress=more.get("progress"),
    )
    named: dict[str, Any] = {**stream, "in_order": True}
    if prefix:
        named["target_prefixes"] = repeat(prefix)
    return job, named


@dataclass(frozen=True)
class _State:
    """What `OUTPUT.part.json` holds."""

    options: str
    lines: int = 0
    source_bytes: int = 0
    source_sha256: str = hashlib.sha256().hexdigest()
    output_bytes: int = 0
    output_sha256: str = hashlib.sha256().hexdigest()


class FileTranslation:
    """One run over a file; use it in a `with` block, and call `finish` in it. It holds only the lines that are under
    way."""

    def __init__(
        self,
        source: Path,
        output: Path,
        options: Mapping[str, Any],
        *,
        restart: bool = False,
        progress: Callable[[FileProgress], None] | None = None,
    ) -> None:
        """options: everything on which the translation depends; a run resumes only one with the same. restart: drop
        what an earlier run has left. progress: called after each line.

        A symbolic link as output stays; its target is written. Entering raises InvalidRequestError if a file cannot be
        opened, for a source that is a pipe and an output that is no regular file, if an earlier run had another source
        or other options, and if another run writes the same output.
        """
        self._given = output
        output = Path(os.path.realpath(output))
        self._source_path = source
        self._output_path = output
        self._part = output.with_name(f"{output.name}.part")
        self._sidecar = output.with_name(f"{output.name}.part.json")
        text = json.dumps(options, sort_keys=True, default=repr)
        self._state = _State(hashlib.sha256(text.encode()).hexdigest())
        self._restart = restart
        self._progress = progress
        self._under_way: deque[bytes] = deque()
        """The lines that are read and not written."""
        self._read_hash = hashlib.sha256()
        self._written_hash = hashlib.sha256()
        self._in_place = False
        """Whether an earlier run of the same was killed after its output was in its place."""
        self.first = 0
        """Lines that an earlier run had written."""

    def __enter__(self) -> FileTranslation:
        self._source = _opened(self._source_path, "rb", "read")
        try:
            if not self._source.seekable():
                raise InvalidRequestError(
                    f"{self._source_path} is a pipe, which a resumed run cannot read again: give a file"
                )
            if self._given.exists() and not self._given.is_file():
                raise InvalidRequestError(f"{self._given} is no regular file: choose another output")
            if self._output_path.exists() and Path(self._source_path).samefile(self._output_path):
                raise InvalidRequestError(f"{self._output_path} is the file to translate: choose another output")
            self._total = os.fstat(self._source.fileno()).st_size
            self._output = _opened(self._part, "a+b", "write")
            try:
                self._resume()
            except BaseException:
                self._output.close()
                raise
        except BaseException:
            self._source.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()
        if not self._output.closed:
            try:
                if not self._in_place:
                    self._save()
            finally:
                with suppress(OSError):  # what is not written now was refused a moment ago
                    self._output.close()

    @property
    def progress(self) -> FileProgress:
        """How far it is."""
        return FileProgress(self._state.lines, self._state.source_bytes, self._total, self.first)

    def texts(self) -> Iterator[str]:
        """The texts of the lines that are not translated yet. Raises InvalidRequestError for one that is not UTF-8."""
        number = self.first
        offset = self._state.source_bytes
        for line in self._source:
            number += 1
            text = decode_line(line, number, offset, str(self._source_path))
            offset += len(line)
            self._under_way.append(line)
            yield text

    def answered(self, answer: StreamAnswer) -> None:
        """Writes the next answer as a line. Raises its error, with the number of the line if it is about the text."""
        try:
            self.write(one_line(answer.result().text))
        except InvalidRequestError as error:
            raise InvalidRequestError(f"line {self.first + answer.index + 1}: {error}") from error

    def write(self, text: str) -> None:
        """Writes the next line. text: without a newline."""
        read = self._under_way.popleft()
        written = text.encode() + b"\n"
        with errors_name(self._output_path):
            self._output.write(written)
        self._read_hash.update(read)
        self._written_hash.update(written)
        state = self._state
        self._state = replace(
            state,
            lines=state.lines + 1,
            source_bytes=state.source_bytes + len(read),
            output_bytes=state.output_bytes + len(written),
        )
        if self._state.lines % SAVED_EVERY == 0:
            self._save()
        if self._progress is not None:
            self._progress(self.progress)

    def finish(self) -> FileProgress:
        """Puts the output in its place: all lines are written."""
        if self._in_place:
            self._output.close()
            self._part.unlink()
        else:
            self._save()
            with errors_name(self._output_path):
                os.fsync(self._output.fileno())
            self._output.close()
            self._part.replace(self._output_path)
        self._sidecar.unlink()
        return self.progress

    def _save(self) -> None:
        with errors_name(self._output_path):
            self._output.flush()
        self._state = replace(
            self._state, source_sha256=self._read_hash.hexdigest(), output_sha256=self._written_hash.hexdigest()
        )
        write_whole(self._sidecar, json.dumps(asdict(self._state)))

    def _resume(self) -> None:
        """Goes to where the last run stopped, or begins. The output is locked until it is closed."""
        try:
            fcntl.flock(self._output, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidRequestError(f"{self._part} is being written by another run: wait for its end") from None
        if os.fstat(self._output.fileno()).st_size and not self._restart and not self._sidecar.exists():
            raise InvalidRequestError(f"{self._part} belongs to no run that can be resumed: remove it, or start anew")
        if self._sidecar.exists() and not self._restart:
            saved = _loaded(self._sidecar)
            if not self._was_put_in_place(saved):
                self._state = self._checked(saved)
            elif saved.options == self._state.options and self._is_all_of_the_source(saved):
                self._state = saved
                self._in_place = True
                self.first = saved.lines
                return
        self.first = self._state.lines
        self._output.truncate(self._state.output_bytes)
        self._save()

    def _was_put_in_place(self, saved: _State) -> bool:
        """Whether the run of a state had renamed its output, and was killed before the state was removed."""
        if os.fstat(self._output.fileno()).st_size or not (saved.output_bytes and self._output_path.is_file()):
            return False
        with self._output_path.open("rb") as output:
            return hashlib.file_digest(output, "sha256").hexdigest() == saved.output_sha256

    def _is_all_of_the_source(self, saved: _State) -> bool:
        """Whether the run of a state had read the source as it is now. The source is then at its end."""
        if self._total != saved.source_bytes:
            return False
        digest = hashlib.file_digest(self._source, "sha256")  # type: ignore[arg-type]  # opened for bytes
        if digest.hexdigest() == saved.source_sha256:
            return True
        self._source.seek(0)
        return False

    def _checked(self, saved: _State) -> _State:
        if saved.options != self._state.options:
            raise InvalidRequestError(f"{self._part} was translated with other options: use these again, or start anew")
        for stream, name, size, digest, whole in (
            (self._source, self._source_path, saved.source_bytes, self._read_hash, saved.source_sha256),
            (self._output, self._part, saved.output_bytes, self._written_hash, saved.output_sha256),
        ):
            stream.seek(0)
            missing = size
            while missing and (chunk := stream.read(min(CHUNK, missing))):
                digest.update(chunk)
                missing -= len(chunk)
            if missing or digest.hexdigest() != whole:
                raise InvalidRequestError(f"{name} has changed since {saved.lines} lines were translated: start anew")
        return saved


def _opened(path: Path, mode: str, what: str) -> IO[bytes]:
    try:
        return path.open(mode)
    except OSError as error:
        raise InvalidRequestError(f"cannot {what} {path}: {error.strerror}") from error


def _loaded(sidecar: Path) -> _State:
    try:
        return _State(**json.loads(sidecar.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InvalidRequestError(f"{sidecar} cannot be read: remove it and {sidecar.stem}, or start anew") from error

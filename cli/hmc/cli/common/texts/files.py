"""`hmc translate --source`: a line of output for each line of input, resumed where a run was stopped; or running text.

Running text is read whole and written as its pieces are translated.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmc.artifact.errors import InvalidRequestError
from hmc.cli.common.outputs import check_file
from hmc.cli.common.records import warn_if_incomplete, write_lines
from hmc.cli.common.texts.lines import read_text
from hmc.serving.client import FileProgress
from hmc.serving.client.files import FileTranslation
from hmc.serving.requests.options import Segmentation, TextOptions

if TYPE_CHECKING:
    from hmc.cli.common.backends import Backend
    from hmc.engine.requests.options import DecodeOptions


def check_files(texts: list[str], file: Path | None, out: Path) -> Path:
    """The file to read. Raises InvalidRequestError unless it is one that can be read again, and `out` can be
    written."""
    if texts or file is None or str(file) == "-":
        raise InvalidRequestError("--out needs --source FILE: a run that is stopped reads it again")
    check_file("--out", out)
    return file


def write_file(
    backend: Backend, job: FileTranslation, options: DecodeOptions, prefix: str, json_output: bool
) -> FileProgress:
    """Translates the rest of a file. Each translation begins with `prefix`."""
    write_lines(backend, job.texts(), options, prefix, json_output, job.write, job.first)
    return job.finish()


@contextlib.contextmanager
def opened(file: Path, out: Path, options: Mapping[str, Any], restart: bool) -> Iterator[FileTranslation]:
    """The translation of `file` to `out`, with its progress on a terminal. options: see `FileTranslation`."""
    from hmc.cli.common.consoles import open_console

    console = open_console(stderr=True)
    if not console.is_terminal:
        with FileTranslation(file, out, options, restart=restart) as job:
            _say_resumed(job)
            yield job
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(file.name)

        def show(done: FileProgress) -> None:
            said = f"{file.name}: {done.lines} lines"
            bars.update(task, total=done.total_bytes, completed=done.source_bytes, description=said)

        with FileTranslation(file, out, options, restart=restart, progress=show) as job:
            _say_resumed(job)
            yield job


def _say_resumed(job: FileTranslation) -> None:
    if job.first:
        sys.stderr.write(f"hmc: going on after line {job.first}, where the last run stopped\n")


def write_document(
    backend: Backend, texts: Sequence[str], file: Path | None, options: DecodeOptions, keep: Sequence[str],
    segmentation: Segmentation,
) -> None:  # fmt: skip
    """Translates running text, and writes each piece as soon as it is translated. keep: regular expressions; their
    matches are copied. Raises InvalidRequestError for text arguments, which are lines, and as `matches`."""
    if texts:
        raise InvalidRequestError(
            "--document reads running text from --source or stdin; texts on the command line need no --document"
        )
    text = read_text(file)
    for piece in backend.document(text, options, TextOptions(segmentation, keep=matches(text, keep))):
        sys.stdout.buffer.write(piece.text.encode())
        sys.stdout.buffer.flush()
        if piece.segment is not None:
            warn_if_incomplete(f"characters {piece.segment.source_begin}-{piece.segment.source_end}", piece.segment)


def matches(text: str, patterns: Sequence[str]) -> tuple[str, ...]:
    """The matches of the regular expressions in a text, each once. Raises InvalidRequestError for one that is
    malformed."""
    return tuple(dict.fromkeys(found for pattern in patterns for found in _found(text, pattern)))


def _found(text: str, pattern: str) -> Iterator[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise InvalidRequestError(f"--keep {pattern!r} is no regular expression: {error}") from error
    return (found[0] for found in compiled.finditer(text) if found[0].strip())

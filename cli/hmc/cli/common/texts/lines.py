"""Reading texts from the command line, a file or stdin: one on each line, in UTF-8."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.git_lfs import refuse_pointer
from hmc.artifact.storage.rows import null_bytes
from hmc.engine.requests.checks import decode_line, other_form, what_to_do


@contextlib.contextmanager
def open_lines(arguments: Sequence[str], file: Path | None) -> Iterator[Iterator[str]]:
    """Yields the arguments, or the lines of `file`, or of stdin if neither is given. Raises InvalidRequestError."""
    if arguments and file is not None:
        raise InvalidRequestError("give texts as arguments or with --source, not both")
    if arguments:
        yield _given(arguments)
    elif file is None or str(file) == "-":
        if sys.stdin is None:  # None if the caller has closed it
            raise InvalidRequestError("stdin is closed: give texts as arguments or with --source, or pipe them in")
        if sys.stdin.isatty():
            sys.stderr.write("Reading texts from the terminal, one a line; Ctrl-D ends.\n")
        yield decode_lines(_stdin(), "stdin")
    else:
        try:
            stream = file.open("rb")
        except OSError as error:
            raise InvalidRequestError(f"cannot read {file}: {error.strerror}") from error
        with stream:
            yield decode_lines(stream, str(file))


def read_text(file: Path | None) -> str:
    """All of `file`, or of stdin for None and `-`, with its line breaks. Raises InvalidRequestError."""
    if file is None or str(file) == "-":
        if sys.stdin is None:
            raise InvalidRequestError("stdin is closed: give a file with --source, or pipe the text in")
        return _decoded(_stdin().read(), "stdin")
    try:
        return _decoded(file.read_bytes(), str(file))
    except OSError as error:
        raise InvalidRequestError(f"cannot read {file}: {error.strerror}") from error


def _decoded(data: bytes, name: str) -> str:
    refuse_pointer(data, name)
    if not other_form(data) and (problem := null_bytes(data)):
        raise InvalidRequestError(f"{name} has {problem}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"{name} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}; {what_to_do(data)}"
        ) from error


def _stdin() -> BinaryIO:
    """A second reader of stdin, which is never closed.

    With `sys.stdin` itself Python would end in a fatal error if a thread still waits for a line, and closing it would
    wait for that thread.
    """
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except (OSError, ValueError):  # not a file: the stream was replaced, as tests do
        return sys.stdin.buffer


def check_stdout() -> None:
    """Raises InvalidRequestError if standard output is closed."""
    if sys.stdout is None:
        raise InvalidRequestError("stdout is closed: send the output to a file or a pipe, or to /dev/null")


def _given(arguments: Sequence[str]) -> Iterator[str]:
    for number, text in enumerate(arguments, 1):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"text {number} on the command line is not UTF-8 at character {error.start}; "
                "use a UTF-8 terminal, or put the text into a UTF-8 file and give it with --source"
            ) from error
        yield text


def decode_lines(stream: BinaryIO | Iterable[bytes], name: str) -> Iterator[str]:
    """Yields the lines without their ends, which are \\n or \\r\\n.

    Raises InvalidRequestError with the offset of the first byte that is not UTF-8.
    """
    offset = 0
    for number, line in enumerate(stream, 1):
        yield decode_line(line, number, offset, name)
        offset += len(line)

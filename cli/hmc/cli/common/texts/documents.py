"""Running text on the command line: read whole, written as its pieces are translated; and phrases to keep."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hmc.artifact.errors import InvalidRequestError
from hmc.cli.common.records import warn_if_incomplete
from hmc.cli.common.texts.lines import read_text
from hmc.serving.requests.options import Segmentation, TextOptions

if TYPE_CHECKING:
    from hmc.cli.common.backends import Backend
    from hmc.serving.requests.options import DecodeOptions


def write_document(
    backend: Backend, texts: Sequence[str], file: Path | None, options: DecodeOptions, keep: Sequence[str],
    segmentation: Segmentation,
) -> None:  # fmt: skip
    """Translates running text, and writes each piece as soon as it is translated. keep: regular expressions; what they
    match is copied. Raises InvalidRequestError for text arguments, which are lines, and as `matches`."""
    if texts:
        raise InvalidRequestError(
            "--document reads running text from --file or stdin; texts on the command line need no --document"
        )
    text = read_text(file)
    for piece in backend.document(text, options, TextOptions(segmentation, keep=matches(text, keep))):
        sys.stdout.buffer.write(piece.text.encode())
        sys.stdout.buffer.flush()
        if piece.segment is not None:
            warn_if_incomplete(f"characters {piece.segment.source_begin}-{piece.segment.source_end}", piece.segment)


def matches(text: str, patterns: Sequence[str]) -> tuple[str, ...]:
    """What the regular expressions match in a text, each once. Raises InvalidRequestError for one that is malformed."""
    return tuple(dict.fromkeys(found for pattern in patterns for found in _found(text, pattern)))


def _found(text: str, pattern: str) -> Iterator[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise InvalidRequestError(f"--keep {pattern!r} is no regular expression: {error}") from error
    return (found[0] for found in compiled.finditer(text) if found[0].strip())

"""Calibration text: the first lines of a file, read no further than they are needed."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.storage.text import text_lines

SENTENCES = 256
"""Sentences that activation ranges are fitted to."""
LINES = 4 * SENTENCES
"""Lines that are looked at to find SENTENCES which have tokens."""


def read_calibration(path: Path) -> list[str]:
    """The first LINES lines of a UTF-8 file that are not blank, without their ends; `.gz` files are unpacked.

    What comes after them is not read: a corpus of many gigabytes costs no more than its first lines. Raises
    InvalidRequestError for a file that is missing, damaged or not UTF-8 up to there, or that has no such line.
    """
    found = list(islice((line for line in text_lines(path) if line.strip()), LINES))
    if not found:
        raise InvalidRequestError(f"{path}: holds no sentence; give one sentence a line")
    return found

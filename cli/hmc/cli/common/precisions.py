"""The option --precision of several commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hmc.artifact.precisions import Precision


def parse_precisions(text: str) -> list[Precision]:
    """`fp32,int8` → a list. Raises InvalidRequestError."""
    from hmc.artifact.errors import InvalidRequestError
    from hmc.artifact.precisions import PRECISIONS, precision_named

    words = [part.strip() for part in text.split(",") if part.strip()]
    if not words or not PRECISIONS.keys() >= set(words):
        names = ", ".join(PRECISIONS)
        raise InvalidRequestError(f"--precision {text!r}: choose {names}, or several with commas")
    return [precision_named(word) for word in words]

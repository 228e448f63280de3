"""What dividing texts needs to know about a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hmc.serving.requests.options import MAX_TEXT_BYTES

COUNTED_AT_ONCE = 4096
"""Characters of a long text whose tokens are counted together."""


@dataclass(frozen=True)
class SourceSide:
    """The source side of a model. Thread-safe if its functions are."""

    language: str
    """The language of the source, a BCP 47 tag."""
    target_language: str
    """The language of the target, a BCP 47 tag."""
    room: int
    """Most tokens of a text, EOS not counted."""
    count: Callable[[str], int]
    """Tokens of a text, EOS not counted. Raises InvalidRequestError for a text that cannot be encoded."""
    code: Callable[[str], str]
    """The code of the target language that a text begins with, such as `>>deu<< `; empty if there is none."""

    def fits(self, text: str) -> bool:
        """Whether the model has room for the text. Raises as `count`."""
        if text.isascii() and len(text) < self.room:
            return True  # a token has at least one character; SentencePiece puts one blank before the text
        return len(text.encode()) <= MAX_TEXT_BYTES and self.count(text) <= self.room

    def about(self, text: str, most: int) -> int:
        """Tokens of a text of any length, EOS not counted, up to one for each part of COUNTED_AT_ONCE characters too
        many; its bytes if these are not more than `most`. Raises as `count`."""
        size = len(text.encode())
        if size <= most:
            return size
        return sum(self.count(text[n : n + COUNTED_AT_ONCE]) for n in range(0, len(text), COUNTED_AT_ONCE))

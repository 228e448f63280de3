"""What dividing texts needs to know about a model: its languages, and how long its sentences may be."""

from __future__ import annotations

from hmc.serving.requests.options import MAX_TEXT_BYTES
from hmc.serving.text.tokenizer import Tokenizer


class Source:
    """The source side of a model. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, language: str, target_language: str) -> None:
        """Languages are BCP 47 tags."""
        self._tokenizer = tokenizer
        self.language, self.target_language = language, target_language
        self.room = tokenizer.room
        """Most tokens of a text, EOS not counted."""

    def count(self, text: str) -> int:
        """Tokens of a text, EOS not counted. Raises InvalidRequestError as `Tokenizer.encode`."""
        return self._tokenizer.count(text)

    def fits(self, text: str) -> bool:
        """Whether the model has room for the text. Raises InvalidRequestError as `Tokenizer.encode`."""
        if text.isascii() and len(text) < self.room:
            return True  # a token has at least one character; SentencePiece puts one blank before the text
        return len(text.encode()) <= MAX_TEXT_BYTES and self.count(text) <= self.room

    def code(self, text: str) -> str:
        """The code of the target language at the beginning of a text, such as `>>deu<< `; empty if there is none."""
        return self._tokenizer.code(text)

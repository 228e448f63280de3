"""The text of a translation under way that no later step can change, piece by piece."""

from __future__ import annotations

import logging
from collections.abc import Callable

from hmc.serving.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class CertainText:
    """Gives the text of the certain tokens to `progress`, piece by piece."""

    def __init__(self, tokenizer: Tokenizer, progress: Callable[[str], None]) -> None:
        self._tokenizer, self._progress, self._given = tokenizer, progress, ""

    def update(self, ids: tuple[int, ...]) -> None:
        """ids: all certain tokens so far."""
        text = self._tokenizer.decode(ids)
        # The bytes of one character may be several tokens: until all are there, they decode to U+FFFD.
        if text.startswith(self._given) and not text.endswith("\ufffd") and len(text) > len(self._given):
            piece, self._given = text[len(self._given) :], text
            try:
                self._progress(piece)
            except Exception:
                log.exception("the progress callback of a translation raised; the translation continues")

"""The largest answer that can be sent: what does not fit is refused while it is made, not after."""

from __future__ import annotations

from hmc.artifact.errors import InvalidRequestError
from hmc.serving.results import Alternative, Translation
from hmc.serving.server.settings import MAX_MESSAGE_BYTES

FIELDS = 64
"""Bytes, at least as many as the numbers of one translation or hypothesis take."""
TOKEN, PIECE = 24, 6
"""The same for a token, its attention left out, and for the frame of a string."""


class AnswerRoom:
    """Of one answer."""

    def __init__(self, most: int = MAX_MESSAGE_BYTES) -> None:
        self._most, self._left = most, most - 1024

    def add(self, translation: Translation) -> Translation:
        """The same translation. Raises InvalidRequestError when the answer would be too large with it."""
        self._left -= largest(translation)
        if self._left < 0:
            raise InvalidRequestError(
                f"the answer would be larger than {self._most // 2**20} MiB, the most that a message may have: send "
                "fewer texts in a call, ask for fewer hypotheses (n_best), or leave out alignment"
            )
        return translation


def largest(translation: Translation) -> int:
    """Bytes that a translation takes in a message, or a few more."""
    pieces = sum(len(piece.encode()) + PIECE for piece in translation.source_pieces)
    return FIELDS + pieces + sum(map(_largest_of, translation.hypotheses))


def _largest_of(hypothesis: Alternative) -> int:
    tokens = sum(len(t.piece.encode()) + TOKEN + 4 * len(t.attention) for t in hypothesis.tokens)
    return FIELDS + len(hypothesis.text.encode()) + tokens

"""Puts translated sentences together with what lies between them."""

from __future__ import annotations

from dataclasses import replace

from hmc.serving.requests.results import Segment, Translation
from hmc.serving.text.segmentation.pieces import Piece

UNSPACED = ("zh", "ja", "th", "lo", "km", "my", "bo", "yue", "wuu")
"""Languages that write no blank between sentences."""
FULL_STOPS = "。！？｡"
"""Ends of sentences after which no blank is written."""


class Joined:
    """The translation of one text while it is made."""

    def __init__(self, target_language: str) -> None:
        """target_language: a BCP 47 tag."""
        self._spaced = target_language.partition("-")[0] not in UNSPACED
        self._parts: list[str] = []
        self._size = 0
        self._open = False  # whether the last part is a sentence after which a blank belongs
        self._total = Translation("", 0.0, 0, 0)
        self._segments: list[Segment] = []

    def copy(self, text: str) -> str:
        """Adds a copied part, and returns what was added."""
        self._open = False
        return self._write(text)

    def add(self, piece: Piece, translation: Translation) -> tuple[str, Segment]:
        """Adds a sentence. Returns the text that was added, and where it lies."""
        glue = self._write(" " if self._open else "")
        begin = self._size
        made = self._write(piece.put_back(translation.text))
        self._open = self._spaced and piece.source[-1:] in FULL_STOPS
        self._total = _sum(self._total, translation)
        segment = Segment(
            piece.begin, piece.end, begin, self._size, translation.score, translation.source_tokens,
            translation.target_tokens, translation.hit_max_length, translation.tokens, translation.source_pieces,
            translation.much_shorter,
        )  # fmt: skip
        return glue + made, segment

    def collect(self, piece: Piece, translation: Translation) -> None:
        """As `add`. The sentence is then one of those that `translation` returns."""
        self._segments.append(self.add(piece, translation)[1])

    def translation(self, *, segments: bool) -> Translation:
        """The whole translation. segments: with the sentences.

        Its score is the mean of the sentences' scores, weighted by their target tokens: with a length penalty of 1, the
        log-probability of all tokens divided by their number, as for a single sentence.
        """
        text, listed = "".join(self._parts), tuple(self._segments) if segments else ()
        return replace(self._total, text=text, segments=listed)

    def forget(self) -> None:
        """Drops the text so far. Offsets go on: a document is sent piece by piece."""
        self._parts.clear()

    def _write(self, text: str) -> str:
        self._parts.append(text)
        self._size += len(text)
        return text


def _sum(total: Translation, added: Translation) -> Translation:
    """The numbers of two translations together; a total of no tokens is the first one."""
    tokens = total.target_tokens + added.target_tokens
    weighted = total.score * total.target_tokens + added.score * added.target_tokens
    begin = min(total.queue_s, added.queue_s) if total.target_tokens else added.queue_s
    end = max(total.queue_s + total.compute_s, added.queue_s + added.compute_s)
    return Translation(
        text="",
        score=weighted / tokens if tokens else 0.0,
        source_tokens=total.source_tokens + added.source_tokens,
        target_tokens=tokens,
        source_truncated=total.source_truncated or added.source_truncated,
        hit_max_length=total.hit_max_length or added.hit_max_length,
        much_shorter=total.much_shorter or added.much_shorter,
        queue_s=begin,
        compute_s=end - begin,
    )

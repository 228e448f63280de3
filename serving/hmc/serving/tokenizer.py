"""Text to source ids and target ids to text, with the bundle's SentencePiece model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import sentencepiece

from hmc.artifact.architecture import Architecture
from hmc.artifact.bundle import FIX
from hmc.artifact.errors import InvalidArtifactError, InvalidRequestError
from hmc.serving.options import MAX_TEXT_BYTES


class Tokenizer:
    """One per bundle; thread-safe. Raises InvalidArtifactError when the model cannot be read."""

    def __init__(self, model: Path, arch: Architecture) -> None:
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        except (RuntimeError, OSError) as error:
            raise InvalidArtifactError(f"tokenizer {model}", [f"not a SentencePiece model: {error}"], FIX) from error
        self._arch = arch

    def encode(self, text: str) -> tuple[list[int], bool]:
        """Ids with EOS last, and whether the text was cut to the model's positions.

        Raises InvalidRequestError when the text is longer than MAX_TEXT_BYTES or is not encodable as UTF-8.
        """
        try:
            size = len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"text is not valid Unicode ({error.reason} at {error.start}); decode it as UTF-8"
            ) from error
        if size > MAX_TEXT_BYTES:
            raise InvalidRequestError(
                f"text of {size:,} bytes is over the limit of {MAX_TEXT_BYTES:,}; "
                "split it into sentences and send those"
            )
        ids: list[int] = self._processor.encode(text)
        room = self._arch.max_positions - 1
        return [*ids[:room], self._arch.eos_id], len(ids) > room

    def decode(self, ids: Sequence[int]) -> str:
        """Text of target ids."""
        text: str = self._processor.decode(list(ids))
        return text

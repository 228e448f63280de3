"""The pieces a tokenizer cuts a text into, and what characters they stand for."""

from __future__ import annotations

from hmc.artifact.tokenizer import load_pieces
from hmc.artifact.tokenizer_files import SOURCE, TOKENIZER
from hmc.training.vocabulary import Vocabulary


class SourcePieces:
    """Cuts source texts, and says where in the text each token comes from."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises InvalidArtifactError when the tokenizer cannot be read."""
        files = vocabulary.files
        self._vocabulary = vocabulary
        self._pieces = load_pieces(files, TOKENIZER) if isinstance(files, bytes) else load_pieces(files.source, SOURCE)

    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids without EOS, and the characters of each, leading spaces left out.

        A token may have no characters: a lone space, or a part of a character that was normalised to several.
        """
        spans, position = [], 0
        # The surfaces of all pieces in a row are the text.
        for piece in self._pieces.encode(text, return_type="proto").pieces:
            end = position + len(piece.surface)
            spans.append((end - len(piece.surface.lstrip()), end))
            position = end
        return self._vocabulary.encode(text)[:-1], spans

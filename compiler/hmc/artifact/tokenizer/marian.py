"""Marian's tokenizer: a SentencePiece model for each side, and vocabularies of their pieces."""

from __future__ import annotations

from collections.abc import Sequence

from hmc.artifact.errors import InvalidArtifactError, InvalidRequestError
from hmc.artifact.tokenizer.files import (
    EOS_PIECE,
    PAD_PIECE,
    SOURCE,
    TARGET,
    UNK_PIECE,
    MarianFiles,
    parse_vocabulary,
    special_problems,
)
from hmc.artifact.tokenizer.pieces import FIX, LANGUAGE_CODE, load_pieces, sampling


class MarianTokenizer:
    """A SentencePiece model for each side, as in Marian. Both sides share a vocabulary, or each has one.

    A piece that is not in the vocabulary becomes `<unk>`. A text that contains the name of a special token, such as
    `</s>`, never becomes that token.
    """

    def __init__(self, files: MarianFiles) -> None:
        """Raises InvalidArtifactError when a model or the vocabulary cannot be read."""
        parsed = [parse_vocabulary(content, name) for name, content in files.vocabularies().items()]
        problems = [problem for _, problems in parsed for problem in problems]
        if problems := problems or special_problems([vocabulary for vocabulary, _ in parsed]):
            raise InvalidArtifactError("tokenizer", problems, FIX)
        self._source, self._target = load_pieces(files.source, SOURCE), load_pieces(files.target, TARGET)
        source, target = parsed[0][0], parsed[-1][0]
        self._vocabulary = target
        self._names = _names(target)
        self._source_names = self._names if source is target else _names(source)
        self.size = len(target)
        self.source_size: int | None = None if files.target_vocabulary is None else len(source)
        self.eos_id, self.unk_id, self.pad_id = (target[p] for p in (EOS_PIECE, UNK_PIECE, PAD_PIECE))
        self._special = {self.eos_id, self.unk_id, self.pad_id}
        self.codes = sorted(piece for piece in source if LANGUAGE_CODE.fullmatch(piece))
        """The target languages a multilingual model knows."""
        self._codes = {code: source[code] for code in self.codes}
        plain = {EOS_PIECE, PAD_PIECE, *self.codes}
        self._source_ids = {piece: number for piece, number in source.items() if piece not in plain}
        self._target_ids = self._source_ids if source is target else {p: i for p, i in target.items() if p not in plain}

    def encode(self, text: str, *, target: bool = False, dropout: float = 0.0) -> list[int]:
        """See `Tokenizer`. A language code at the start of a source text is one token of its own."""
        code, rest = (None, text) if target else self._split_code(text)
        side, known = (self._target, self._target_ids) if target else (self._source, self._source_ids)
        pieces: list[str] = side.encode(rest, out_type=str, **sampling(dropout))
        ids = [known.get(piece, self.unk_id) for piece in pieces]
        return [code, *ids] if code is not None and ids else ids

    def opening(self, text: str = "") -> list[int]:  # noqa: ARG002 - one interface with MultilingualTokenizer
        """See `Tokenizer`. The target language is named in the source alone."""
        return []

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer`."""
        pieces = [self._names[int(i)] for i in ids if i not in self._special]
        text: str = self._target.decode(pieces)
        return text.replace("▁", " ").strip()

    def piece(self, token: int) -> str:
        """See `Tokenizer`."""
        return self._names[token]

    def source_piece(self, token: int) -> str:
        """See `Tokenizer`."""
        return self._source_names[token]

    def find(self, piece: str) -> int | None:
        """See `Tokenizer`."""
        return self._vocabulary.get(piece)

    def _split_code(self, text: str) -> tuple[int | None, str]:
        match = LANGUAGE_CODE.match(text) if self.codes else None
        if not match:
            return None, text
        if match[1] not in self._codes:
            raise InvalidRequestError(f"unknown target language {match[1]}; this model has: {', '.join(self.codes)}")
        return self._codes[match[1]], text[match.end() :]


def _names(vocabulary: dict[str, int]) -> dict[int, str]:
    return {number: piece for piece, number in vocabulary.items()}

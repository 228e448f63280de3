"""Text to token ids and back, for all forms of tokenizer files. SentencePiece and the standard library only.

- Joint: one SentencePiece model for both sides.
- Marian: a SentencePiece model for each side, and vocabularies of their pieces.
- Multilingual (M2M100 and NLLB): each side begins with the token of its language. The source is `[source language,
  pieces …, EOS]`, and the target `[target language, pieces …, EOS]`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol

import sentencepiece
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError, model_validator

from hmc.artifact.errors import InvalidArtifactError, InvalidRequestError, field_problems
from hmc.artifact.git_lfs import why
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.tokenizer.files import (
    EOS_PIECE,
    LANGUAGES,
    PAD_PIECE,
    SOURCE,
    TARGET,
    TOKENIZER,
    UNK_PIECE,
    MarianFiles,
    TokenizerFiles,
    parse_vocabulary,
    special_problems,
)

FIX = "Write the checkpoint or bundle again, or copy it again from where it was whole."
LANGUAGE_CODE = re.compile(r"\s*(>>[^<>\s]+<<)\s*")
"""Names the target language at the start of a source text for multilingual models, e.g. `>>deu<<`."""


class Tokenizer(Protocol):
    """The interface of both tokenizers. They are thread-safe."""

    size: int
    """Target ids are 0 to size - 1."""
    source_size: int | None
    """Size of the source vocabulary; None: both sides share one."""
    eos_id: int
    unk_id: int
    pad_id: int

    def names_language(self, token: int) -> bool:
        """Whether a source token is no text and names a language."""

    def encode(self, text: str, *, target: bool = False, dropout: float = 0.0) -> list[int]:
        """Ids of a source (or target) text, without EOS; none for a blank text.

        dropout: probability of skipping a merge of a BPE model (BPE-dropout, Provilkov et al. 2020).
        Raises InvalidRequestError for a language code that the model does not have, and for dropout in a unigram model.
        """

    def opening(self, text: str = "") -> list[int]:
        """The tokens with which every target begins: the token of its language, if that is a target token. text: the
        source, which may name the language. Otherwise it is the default language."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of target ids, without EOS, pad and the unknown token (as `skip_special_tokens` of Transformers)."""

    def piece(self, token: int) -> str:
        """Spelling of a target token in the vocabulary; `▁` starts a word."""

    def source_piece(self, token: int) -> str:
        """Spelling of a source token in the source vocabulary."""

    def find(self, piece: str) -> int | None:
        """The target token that is spelled `piece`; None if no token is."""


def open_tokenizer(files: TokenizerFiles) -> Tokenizer:
    """The tokenizer of either form. Raises InvalidArtifactError when a file cannot be read."""
    if not isinstance(files, MarianFiles):
        return JointTokenizer(files)
    return MarianTokenizer(files) if files.languages is None else MultilingualTokenizer(files)


def language_codes(files: TokenizerFiles) -> tuple[str, ...]:
    """The codes of target languages that a tokenizer knows, such as `>>deu<<`, sorted; none for a model of one target
    language, and for a joint SentencePiece model. Raises InvalidArtifactError when the vocabulary cannot be read."""
    if not isinstance(files, MarianFiles):
        return ()
    if files.languages is not None:
        return read_languages(files.languages).names()
    vocabulary, problems = parse_vocabulary(files.vocabulary)
    if problems:
        raise InvalidArtifactError("tokenizer", problems, FIX)
    return tuple(sorted(piece for piece in vocabulary if LANGUAGE_CODE.fullmatch(piece)))


class JointTokenizer:
    """One SentencePiece model for both sides; its piece ids are the token ids."""

    def __init__(self, model: bytes) -> None:
        """Raises InvalidArtifactError when the model cannot be read."""
        self._pieces = load_pieces(model, TOKENIZER)
        self.source_size: int | None = None
        self.size = int(self._pieces.vocab_size())
        self.eos_id = int(self._pieces.eos_id())
        self.unk_id = int(self._pieces.unk_id())
        self.pad_id = int(self._pieces.pad_id())

    def encode(self, text: str, *, target: bool = False, dropout: float = 0.0) -> list[int]:  # noqa: ARG002
        """See `Tokenizer`. Both sides share one vocabulary."""
        ids: list[int] = self._pieces.encode(text, **sampling(self._pieces, dropout))
        return ids

    def names_language(self, token: int) -> bool:  # noqa: ARG002 - one interface with MarianTokenizer
        """See `Tokenizer`."""
        return False

    def opening(self, text: str = "") -> list[int]:  # noqa: ARG002 - one interface with MultilingualTokenizer
        """See `Tokenizer`. There is one target language."""
        return []

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer`."""
        drop = (self.eos_id, self.pad_id, self.unk_id)
        text: str = self._pieces.decode([int(i) for i in ids if i not in drop])
        return text.strip()  # dropping an unknown token that was a whole word leaves the blank before it

    def piece(self, token: int) -> str:
        """See `Tokenizer`."""
        return str(self._pieces.id_to_piece(token))

    def source_piece(self, token: int) -> str:
        """See `Tokenizer`. Both sides share one vocabulary."""
        return self.piece(token)

    def find(self, piece: str) -> int | None:
        """See `Tokenizer`."""
        token = int(self._pieces.piece_to_id(piece))  # the unknown token for a piece that is not in the model
        return token if self.piece(token) == piece else None


def joint_problems(model: bytes, arch: Architecture) -> list[str]:
    """Contradictions between a joint SentencePiece model and an architecture, or why the model cannot be read.

    A special piece may be an ordinary piece of the SentencePiece model. That is no problem.
    """
    try:
        tokenizer = JointTokenizer(model)
    except InvalidArtifactError as error:
        return list(error.problems)
    problems = []
    if tokenizer.size != arch.vocab_size:
        problems.append(f"{TOKENIZER} has {tokenizer.size} pieces, the model's vocabulary has {arch.vocab_size}")
    return problems + [
        f"{TOKENIZER} has its {name[:-3]} piece at {piece_id}, the model's {name} is {getattr(arch, name)}"
        for name, piece_id in (("eos_id", tokenizer.eos_id), ("unk_id", tokenizer.unk_id), ("pad_id", tokenizer.pad_id))
        if piece_id >= 0 and piece_id != getattr(arch, name)
    ]


class MarianTokenizer:
    """A SentencePiece model for each side, as in Marian. Both sides share a vocabulary, or each has one.

    A piece that is not in the vocabulary becomes `<unk>`. A text that contains the name of a special token, such as
    `</s>`, never becomes that token.
    """

    def __init__(self, files: MarianFiles) -> None:
        """Raises InvalidArtifactError when a model or the vocabulary cannot be read."""
        parsed = [parse_vocabulary(content, name) for name, content in files.vocabularies().items()]
        problems = list(chain.from_iterable(wrong for _, wrong in parsed))
        if problems := problems or special_problems([vocabulary for vocabulary, _ in parsed]):
            raise InvalidArtifactError("tokenizer", problems, FIX)
        self._source = load_pieces(files.source, SOURCE)
        self._target = load_pieces(files.target, TARGET)
        source = parsed[0][0]
        target = parsed[-1][0]
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
        pieces: list[str] = side.encode(rest, out_type=str, **sampling(side, dropout))
        ids = [known.get(piece, self.unk_id) for piece in pieces]
        return [code, *ids] if code is not None and ids else ids

    def names_language(self, token: int) -> bool:
        """See `Tokenizer`."""
        return token in self._codes.values()

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


class LanguageTokens(BaseModel):
    """The content of languages.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    """The language of all sources."""
    target: str
    """The language of targets where a text names no other."""
    codes: dict[str, NonNegativeInt]
    """Language → its token."""
    special: tuple[NonNegativeInt, ...] = ()
    """Further tokens that are no text, such as `<s>`."""

    @model_validator(mode="after")
    def _known(self) -> LanguageTokens:
        for side in ("source", "target"):
            if getattr(self, side) not in self.codes:
                raise ValueError(
                    f"{side} language {getattr(self, side)!r} is none of the model's: {', '.join(self.codes)}"
                )
        return self

    def names(self) -> tuple[str, ...]:
        """The languages as texts name them, such as `>>deu_Latn<<`, sorted."""
        return tuple(sorted(f">>{code}<<" for code in self.codes))

    def content(self) -> bytes:
        """languages.json."""
        return (json.dumps(self.model_dump(mode="json"), indent=1) + "\n").encode()


def read_languages(content: bytes) -> LanguageTokens:
    """Reads languages.json. Raises InvalidArtifactError."""
    try:
        return LanguageTokens.model_validate_json(content)
    except ValidationError as error:
        problems = [f"{LANGUAGES} {why(content, f'is wrong: {problem}')}" for problem in field_problems(error)]
        raise InvalidArtifactError("tokenizer", problems, FIX) from error


class MultilingualTokenizer(MarianTokenizer):
    """As `MarianTokenizer`; both sides share a vocabulary. A source may begin with its target's language, such as
    `>>de<<`."""

    def __init__(self, files: MarianFiles) -> None:
        """Raises InvalidArtifactError when a model, the vocabulary or languages.json cannot be read."""
        assert files.languages is not None
        self._languages = read_languages(files.languages)
        super().__init__(files)
        codes = self._languages.codes
        if outside := [code for code, token in codes.items() if token >= self.size]:
            problem = f"{LANGUAGES}: the token of {outside[0]} is outside the vocabulary of {self.size}"
            raise InvalidArtifactError("tokenizer", [problem], FIX)
        tokens = {*codes.values(), *self._languages.special}
        self._special |= tokens
        self.codes = list(self._languages.names())
        self._codes = {f">>{code}<<": token for code, token in codes.items()}
        self._source_ids = self._target_ids = {p: i for p, i in self._source_ids.items() if i not in tokens}

    def encode(self, text: str, *, target: bool = False, dropout: float = 0.0) -> list[int]:
        """See `Tokenizer`. The first token of a source is its language. The language token of a target is in
        `opening`."""
        if target:
            return super().encode(text, target=True, dropout=dropout)
        ids = super().encode(self._split_code(text)[1], target=True, dropout=dropout)
        return [self._languages.codes[self._languages.source], *ids] if ids else ids

    def opening(self, text: str = "") -> list[int]:
        """See `Tokenizer`. Raises InvalidRequestError for a language that the model does not have."""
        code, _ = self._split_code(text)
        return [self._languages.codes[self._languages.target] if code is None else code]


def load_pieces(model: bytes, name: str) -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece model from its bytes. Raises InvalidArtifactError that says which file it was."""
    if not model:
        raise InvalidArtifactError("tokenizer", [f"{name} is empty"], FIX)
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        wrong = why(model, f"is not a SentencePiece model: {error}")
        raise InvalidArtifactError("tokenizer", [f"{name} {wrong}"], FIX) from error


def piece_problems(model: bytes, name: str) -> list[str]:
    """Why bytes from elsewhere are no SentencePiece model; empty if they are one. name: of their file."""
    try:
        load_pieces(model, name)
    except InvalidArtifactError as error:
        return [f"{problem}; copy or download it again" for problem in error.problems]
    return []


def sampling(pieces: sentencepiece.SentencePieceProcessor, dropout: float) -> dict[str, Any]:
    """SentencePiece's options for a probability of skipping merges. Raises InvalidRequestError for a unigram model,
    where the same number would smooth probabilities: the smaller it is, the more is split."""
    if not dropout:
        return {}
    try:
        pieces.nbest_encode("a", nbest_size=1)
    except RuntimeError:  # only unigram models have several best segmentations
        return {"enable_sampling": True, "alpha": dropout, "nbest_size": -1}
    raise InvalidRequestError("BPE-dropout skips merges of BPE, and this tokenizer is unigram: set bpe_dropout to 0")

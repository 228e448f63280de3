"""Text to token ids and back, for all forms of tokenizer files. SentencePiece and the standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hmc.artifact.errors import InvalidArtifactError
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.tokenizer.files import TOKENIZER, MarianFiles, TokenizerFiles, parse_vocabulary
from hmc.artifact.tokenizer.marian import MarianTokenizer
from hmc.artifact.tokenizer.multilingual import MultilingualTokenizer, read_languages
from hmc.artifact.tokenizer.pieces import FIX, LANGUAGE_CODE, load_pieces, sampling


class Tokenizer(Protocol):
    """The interface of both tokenizers. They are thread-safe."""

    size: int
    """Target ids are 0 to size - 1."""
    source_size: int | None
    """Size of the source vocabulary; None: both sides share one."""
    eos_id: int
    unk_id: int
    pad_id: int

    def encode(self, text: str, *, target: bool = False, dropout: float = 0.0) -> list[int]:
        """Ids of a source (or target) text, without EOS; none for a blank text.

        dropout: probability of skipping a merge of a BPE model (BPE-dropout, Provilkov et al. 2020).
        Raises InvalidRequestError for a language code that the model does not have.
        """
        ...

    def opening(self, text: str = "") -> list[int]:
        """The tokens with which a target begins, whatever the model prefers: the token of its language, where that is a
        target token. text: the source, which may name the language; without, it is the default one."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of target ids, without EOS, pad and the unknown token (as `skip_special_tokens` of Transformers)."""
        ...

    def piece(self, token: int) -> str:
        """Spelling of a target token in the vocabulary; `▁` starts a word."""
        ...

    def source_piece(self, token: int) -> str:
        """Spelling of a source token in the source vocabulary."""
        ...

    def find(self, piece: str) -> int | None:
        """The target token that is spelled `piece`; None if there is none."""
        ...


class JointTokenizer:
    """One SentencePiece model for both sides; its piece ids are the token ids."""

    def __init__(self, model: bytes) -> None:
        """Raises InvalidArtifactError when the model cannot be read."""
        self._pieces = load_pieces(model, TOKENIZER)
        self.source_size: int | None = None
        self.size = int(self._pieces.vocab_size())
        self.eos_id, self.unk_id = int(self._pieces.eos_id()), int(self._pieces.unk_id())
        self.pad_id = int(self._pieces.pad_id())

    def encode(self, text: str, *, target: bool = False, dropout: float = 0.0) -> list[int]:  # noqa: ARG002
        """See `Tokenizer`. Both sides share one vocabulary."""
        ids: list[int] = self._pieces.encode(text, **sampling(dropout))
        return ids

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
        f"{TOKENIZER} has its {name[:-3]} piece at {found}, the model's {name} is {getattr(arch, name)}"
        for name, found in (("eos_id", tokenizer.eos_id), ("unk_id", tokenizer.unk_id), ("pad_id", tokenizer.pad_id))
        if found >= 0 and found != getattr(arch, name)
    ]


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

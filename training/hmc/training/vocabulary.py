"""The vocabulary of a model: text to token ids with EOS and back, and training a joint SentencePiece model."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence

import sentencepiece

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.tokenizer import open_tokenizer
from hmc.artifact.tokenizer_files import TokenizerFiles, contents

EOS, UNK, PAD = 0, 1, 2
"""Ids in every vocabulary trained here: `</s>` 0 and `<unk>` 1 as in Marian, `<pad>` 2."""
LONGEST_LINE = 4192
"""Bytes of a line that SentencePiece trains on; it leaves longer ones out."""


class Vocabulary:
    """A checkpoint's tokenizer with its special ids: a joint SentencePiece model, or a Marian tokenizer."""

    def __init__(self, files: TokenizerFiles) -> None:
        """Raises InvalidArtifactError when a file cannot be read, InvalidRequestError when it lacks a special token."""
        self.files = files
        self._tokenizer = open_tokenizer(files)
        self.eos_id, self.unk_id, self.pad_id = (
            self._tokenizer.eos_id,
            self._tokenizer.unk_id,
            self._tokenizer.pad_id,
        )
        ids = {"eos_id": self.eos_id, "unk_id": self.unk_id, "pad_id": self.pad_id}
        if missing := [name for name, number in ids.items() if number < 0]:
            options = " ".join(f"--{name}" for name in missing)
            raise InvalidRequestError(
                f"the tokenizer has no {' and no '.join(missing)}: train it with {options} set to an id that nothing "
                "else has, e.g. --eos_id=0 --unk_id=1 --pad_id=2 --bos_id=-1 (by default SentencePiece has no padding)"
            )

    def __len__(self) -> int:
        """Number of target tokens."""
        return self._tokenizer.size

    @property
    def source_size(self) -> int | None:
        """Number of source tokens where these are a vocabulary of their own; None: the two sides share one."""
        return self._tokenizer.source_size

    @property
    def serialized(self) -> TokenizerFiles:
        """What makes the same vocabulary again."""
        return self.files

    @property
    def digest(self) -> str:
        """sha256 of the files."""
        return hashlib.sha256(b"".join(contents(self.files).values())).hexdigest()

    def encode(self, text: str, dropout: float = 0.0, *, target: bool = False) -> list[int]:
        """Ids of a source text (or a target text), EOS last. dropout: see `hmc.artifact.tokenizer.Tokenizer.encode`."""
        return [*self._tokenizer.encode(text, target=target, dropout=dropout), self.eos_id]

    def cut(self, ids: list[int], limit: int) -> list[int]:
        """The first tokens of a text (EOS last), at most `limit` with EOS, as serving and calibration cut it."""
        return ids if len(ids) <= limit else [*ids[: limit - 1], self.eos_id]

    def encode_pair(self, source: str, target: str, dropout: float = 0.0) -> tuple[list[int], list[int]]:
        """Ids of both sides of a sentence pair, EOS last."""
        return self.encode(source, dropout), self.encode(target, dropout, target=True)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of target ids; EOS, pad and the unknown token are dropped."""
        return self._tokenizer.decode(ids)

    @classmethod
    def train(cls, sentences: Iterable[str], vocab_size: int, seed: int = 1) -> Vocabulary:
        """Trains a joint BPE model. Raises InvalidRequestError when the text cannot fill `vocab_size` pieces, and
        whatever reading `sentences` raises."""
        return cls(train_sentencepiece(sentences, vocab_size, seed))


def train_sentencepiece(sentences: Iterable[str], vocab_size: int, seed: int = 1) -> bytes:
    """The `tokenizer.model` of `Vocabulary.train`."""
    output, text = io.BytesIO(), _Reading(sentences)
    sentencepiece.set_random_generator_seed(seed)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text),
            model_writer=output,
            vocab_size=vocab_size,
            model_type="bpe",
            character_coverage=1.0,
            eos_id=EOS,
            unk_id=UNK,
            pad_id=PAD,
            bos_id=-1,
            input_sentence_size=2_000_000,
            shuffle_input_sentence=True,
            minloglevel=2,
            num_threads=2,
        )
    except RuntimeError as error:
        if text.error is not None:
            raise text.error from None
        if not text.filled:
            raise InvalidRequestError("there is no text to train a tokenizer on: data.train is empty") from error
        if not text.usable:
            raise InvalidRequestError(
                f"every line of data.train is longer than {LONGEST_LINE} bytes, and tokenizers are trained on shorter "
                "ones: write a sentence a line"
            ) from error
        raise InvalidRequestError(f"tokenizer.vocab_size = {vocab_size} does not fit this text: {error}") from error
    return output.getvalue()


class _Reading:
    """Sentences on their way to SentencePiece, which makes a RuntimeError of anything that reading them raises."""

    def __init__(self, sentences: Iterable[str]) -> None:
        self.sentences = sentences
        self.error: Exception | None = None
        """What reading raised."""
        self.filled = False
        """Some sentence had text."""
        self.usable = False
        """Some sentence with text was short enough."""

    def __iter__(self) -> Iterator[str]:
        try:
            for sentence in self.sentences:
                if not self.usable and sentence.strip():
                    self.filled, self.usable = True, len(sentence.encode()) <= LONGEST_LINE
                yield sentence
        except Exception as error:
            self.error = error
            raise

"""The vocabulary of a model: text to token ids and back. Also trains joint SentencePiece models."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence

import sentencepiece

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.tokenizer.files import TokenizerFiles, contents
from hmc.artifact.tokenizer.tokenizer import open_tokenizer

EOS = 0
UNK = 1
PAD = 2
"""Ids in every vocabulary trained here: `</s>` 0 and `<unk>` 1 as in Marian, `<pad>` 2."""
LONGEST_LINE = 4192
"""Longest line in bytes that SentencePiece trains on; it skips longer lines."""


class Vocabulary:
    """A checkpoint's tokenizer with its special ids: a joint SentencePiece model, or a Marian tokenizer."""

    def __init__(self, files: TokenizerFiles) -> None:
        """Opens the tokenizer.

        Raises InvalidArtifactError when a file cannot be read, InvalidRequestError when a special token is missing.
        """
        self.files = files
        self._tokenizer = open_tokenizer(files)
        self.eos_id = self._tokenizer.eos_id
        self.unk_id = self._tokenizer.unk_id
        self.pad_id = self._tokenizer.pad_id
        ids = {"eos_id": self.eos_id, "unk_id": self.unk_id, "pad_id": self.pad_id}
        if missing := [name for name, number in ids.items() if number < 0]:
            options = " ".join(f"--{name}" for name in missing)
            raise InvalidRequestError(
                f"the tokenizer has no {' and no '.join(missing)}: train it with SentencePiece's {options} set to an "
                "unused id, e.g. `spm_train --eos_id=0 --unk_id=1 --pad_id=2 --bos_id=-1` (by default SentencePiece "
                "has no padding)"
            )

    def __len__(self) -> int:
        """Number of target tokens."""
        return self._tokenizer.size

    @property
    def source_size(self) -> int | None:
        """Number of source tokens when the source has its own vocabulary; None when both sides share one."""
        return self._tokenizer.source_size

    @property
    def serialized(self) -> TokenizerFiles:
        """The files, from which `Vocabulary(files)` makes the same vocabulary again."""
        return self.files

    @property
    def digest(self) -> str:
        """sha256 of the files."""
        return hashlib.sha256(b"".join(contents(self.files).values())).hexdigest()

    def encode(self, text: str, dropout: float = 0.0, *, target: bool = False) -> list[int]:
        """Returns the ids of a source text (with `target`: of a target text), EOS last.

        dropout: BPE-dropout probability, see `hmc.artifact.tokenizer.tokenizer.Tokenizer.encode`.
        """
        opening = self._tokenizer.opening() if target else []
        return [*opening, *self._tokenizer.encode(text, target=target, dropout=dropout), self.eos_id]

    def encode_pairs(self, pairs: Iterable[tuple[str, str]], limit: int) -> tuple[list[list[int]], list[list[int]]]:
        """Ids of the sources and of the targets of sentence pairs, each cut to `limit` ids, EOS last."""
        sources = []
        targets = []
        for pair in pairs:
            source, target = self.encode_pair(*pair)
            sources.append(self.cut(source, limit))
            targets.append(self.cut(target, limit))
        return sources, targets

    def cut(self, ids: list[int], limit: int) -> list[int]:
        """Shortens ids (EOS last) to `limit` tokens, EOS included, as serving and calibration do."""
        return ids if len(ids) <= limit else [*ids[: limit - 1], self.eos_id]

    def opening(self, source: str = "") -> list[int]:
        """Returns the tokens with which every target of a source begins, see `Tokenizer`."""
        return self._tokenizer.opening(source)

    def source_opening(self, ids: Sequence[int]) -> list[int]:
        """Returns the language token at the beginning of source ids, which is no text. Most models have none."""
        return [token for token in ids[:1] if self._tokenizer.names_language(token)]

    def encode_pair(self, source: str, target: str, dropout: float = 0.0) -> tuple[list[int], list[int]]:
        """Returns the ids of both sides of a sentence pair, EOS last. dropout: BPE-dropout probability."""
        ids = self._tokenizer.encode(target, target=True, dropout=dropout)
        return self.encode(source, dropout), [*self.opening(source), *ids, self.eos_id]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of target ids, without EOS, padding and unknown tokens."""
        return self._tokenizer.decode(ids)

    @classmethod
    def train(cls, sentences: Iterable[str], vocab_size: int, seed: int = 1) -> Vocabulary:
        """Trains a joint BPE model. Raises as `train_sentencepiece`."""
        return cls(train_sentencepiece(sentences, vocab_size, seed))


def train_sentencepiece(sentences: Iterable[str], vocab_size: int, seed: int = 1) -> bytes:
    """Trains a joint BPE model on `sentences`; returns the bytes of its `tokenizer.model`.

    Raises InvalidRequestError when there is no usable text or it cannot fill `vocab_size` pieces. An exception raised
    while reading `sentences` is passed on.
    """
    output = io.BytesIO()
    text = _ObservedSentences(sentences)
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
                "lines: write one sentence per line"
            ) from error
        raise InvalidRequestError(f"tokenizer.vocab_size = {vocab_size}{_why_unfit(str(error))}") from error
    return output.getvalue()


def _why_unfit(error: str) -> str:
    """Says in HMC's words why SentencePiece cannot make a vocabulary of the size."""
    if most := re.search(r"value <= (\d+)", error):
        return (
            f" is too large for this text, which gives {most[1]} pieces: set it to {most[1]} or less, or give more text"
        )
    if least := re.search(r"required_chars\. \d+ vs (\d+)", error):
        return (
            f" is too small for this text, whose characters alone take {least[1]} pieces: set it to {least[1]} or "
            "more, or clean the text"
        )
    return f" does not fit this text: {error}"


class _ObservedSentences:
    """Sentences for SentencePiece. Notes why training failed: SentencePiece turns every exception into RuntimeError."""

    def __init__(self, sentences: Iterable[str]) -> None:
        self.sentences = sentences
        self.error: Exception | None = None
        """The exception that reading raised."""
        self.filled = False
        """True once a sentence had text."""
        self.usable = False
        """True once a sentence with text was short enough to train on."""

    def __iter__(self) -> Iterator[str]:
        try:
            for sentence in self.sentences:
                if not self.usable and sentence.strip():
                    self.filled = True
                    self.usable = len(sentence.encode()) <= LONGEST_LINE
                yield sentence
        except Exception as error:
            self.error = error
            raise

"""The joint SentencePiece vocabulary of a model."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Sequence

import sentencepiece

from hmc.artifact.errors import InvalidRequestError

EOS, UNK, PAD = 0, 1, 2
"""Ids in every vocabulary trained here: `</s>` 0 and `<unk>` 1 as in Marian, `<pad>` 2."""


class Vocabulary:
    """A SentencePiece model with `</s>`, `<unk>` and `<pad>` inside."""

    def __init__(self, serialized: bytes) -> None:
        self.serialized = serialized
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=serialized)
        self.eos_id, self.unk_id, self.pad_id = (
            self._processor.eos_id(),
            self._processor.unk_id(),
            self._processor.pad_id(),
        )

    def __len__(self) -> int:
        return int(self._processor.vocab_size())

    @property
    def digest(self) -> str:
        """sha256 of the model."""
        return hashlib.sha256(self.serialized).hexdigest()

    def encode(self, text: str, dropout: float = 0.0) -> list[int]:
        """Token ids, EOS last. dropout: probability of skipping a merge (BPE-dropout, Provilkov et al. 2020)."""
        if dropout:
            ids: list[int] = self._processor.encode(text, enable_sampling=True, alpha=dropout, nbest_size=-1)
        else:
            ids = self._processor.encode(text)
        return [*ids, self.eos_id]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; EOS and pad are dropped."""
        drop = {self.eos_id, self.pad_id}
        text: str = self._processor.decode([int(i) for i in ids if i not in drop])
        return text

    @classmethod
    def train(cls, sentences: Iterable[str], vocab_size: int, seed: int = 1) -> Vocabulary:
        """Trains a joint BPE model. Raises InvalidRequestError when the text cannot fill `vocab_size` pieces."""
        output = io.BytesIO()
        sentencepiece.set_random_generator_seed(seed)
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sentences),
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
            raise InvalidRequestError(f"tokenizer.vocab_size = {vocab_size} does not fit this text: {error}") from error
        return cls(output.getvalue())

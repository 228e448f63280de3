"""Vocabularies of both forms: ids with EOS for each side, special ids, a digest; and clear errors."""

import io
import json
import re
from collections.abc import Iterator

import pytest
import sentencepiece
from tests.artifact.marian.opus import GERMAN, joint_vocabulary, pieces_model
from tests.tiny import SENTENCES, tiny_tokenizer

from hmc.artifact import InvalidRequestError
from hmc.artifact.tokenizer.files import MarianFiles
from hmc.training import Vocabulary
from hmc.training.data.vocabulary import train_sentencepiece

SOURCE, TARGET = pieces_model(SENTENCES, 110), pieces_model(GERMAN, 100)
ENTRIES = joint_vocabulary(SOURCE, TARGET)
FILES = MarianFiles(SOURCE, TARGET, json.dumps(ENTRIES).encode())


def test_a_marian_tokenizer_serves_both_sides() -> None:
    vocabulary = Vocabulary(FILES)
    assert (len(vocabulary), vocabulary.eos_id, vocabulary.unk_id) == (len(ENTRIES), 0, 1)
    assert vocabulary.pad_id == len(ENTRIES) - 1
    target = vocabulary.encode(GERMAN[0], target=True)
    assert target[-1] == vocabulary.eos_id
    assert vocabulary.decode([*target, vocabulary.pad_id]) == GERMAN[0]
    assert vocabulary.encode(GERMAN[0]) != target


def test_serialized_files_make_the_same_vocabulary_and_the_digest_covers_each() -> None:
    vocabulary = Vocabulary(FILES)
    assert Vocabulary(vocabulary.serialized).encode(SENTENCES[0]) == vocabulary.encode(SENTENCES[0])
    swapped = Vocabulary(MarianFiles(TARGET, SOURCE, FILES.vocabulary))
    assert len({vocabulary.digest, swapped.digest, Vocabulary(tiny_tokenizer()).digest}) == 3


def test_a_trained_model_has_its_special_tokens_first() -> None:
    vocabulary = Vocabulary(train_sentencepiece(SENTENCES, 120))
    assert (len(vocabulary), vocabulary.eos_id, vocabulary.unk_id, vocabulary.pad_id) == (120, 0, 1, 2)
    assert vocabulary.decode(vocabulary.encode(SENTENCES[3])) == SENTENCES[3]


def test_a_model_without_padding_says_how_to_train_one() -> None:
    output = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=output, vocab_size=120, model_type="bpe", minloglevel=2
    )
    with pytest.raises(InvalidRequestError, match="has no pad_id: train it with SentencePiece's --pad_id set"):
        Vocabulary(output.getvalue())


def test_an_error_while_reading_the_text_is_passed_on() -> None:
    def broken() -> Iterator[str]:
        yield from SENTENCES
        raise InvalidRequestError("a.en and a.de differ in length")

    with pytest.raises(InvalidRequestError, match=r"^a\.en and a\.de differ in length$"):
        train_sentencepiece(broken(), 120)


@pytest.mark.parametrize("sentences", [[], ["", "  "]])
def test_empty_text_is_reported_as_such(sentences: list[str]) -> None:
    with pytest.raises(InvalidRequestError, match="there is no text to train a tokenizer on"):
        train_sentencepiece(sentences, 120)


def test_a_size_that_the_text_cannot_fill() -> None:
    with pytest.raises(InvalidRequestError) as told:
        train_sentencepiece(SENTENCES, 90_000)
    found = re.search(r"= 90000 is too large for this text, which gives \d+ pieces: set it to (\d+)", str(told.value))
    assert found
    assert len(Vocabulary.train(SENTENCES, int(found[1]))) == int(found[1])
    many = ["".join(map(chr, range(0x4E00, 0x4F00)))] * 3
    with pytest.raises(InvalidRequestError, match=r"= 64 is too small .* alone take 260 pieces: set it to 260 or more"):
        train_sentencepiece(many, 64)
    assert len(Vocabulary.train(many, 260)) == 260


def test_lines_that_are_too_long() -> None:
    with pytest.raises(InvalidRequestError, match=r"every line of data\.train is longer than 4192 bytes"):
        train_sentencepiece([" ".join(SENTENCES) * 20] * 3, 120)

"""Both forms of tokenizer: the use of each file, unknown pieces, language codes, and invalid files."""

import json
from pathlib import Path

import pytest
import sentencepiece
from tests.artifact.marian.opus import CODES, GERMAN, joint_vocabulary, pieces_model, pieces_of
from tests.tiny import SENTENCES, tiny_tokenizer

from hmc.artifact import InvalidArtifactError, InvalidRequestError
from hmc.artifact.tokenizer.files import (
    MarianFiles,
    parse_vocabulary,
    read_tokenizer,
    tokenizer_digest,
    write_tokenizer,
)
from hmc.artifact.tokenizer.tokenizer import JointTokenizer, MarianTokenizer, open_tokenizer

SOURCE, TARGET = pieces_model(SENTENCES, 110), pieces_model(GERMAN, 100)
VOCABULARY = joint_vocabulary(SOURCE, TARGET)


def marian(source: bytes = SOURCE, target: bytes = TARGET, vocabulary: dict[str, int] | None = None) -> MarianTokenizer:
    """The tokenizer of these files."""
    return MarianTokenizer(MarianFiles(source, target, json.dumps(vocabulary or VOCABULARY).encode()))


def test_each_side_has_its_own_pieces_and_both_share_the_vocabulary() -> None:
    tokenizer = marian()
    for text, model, target in ((SENTENCES[1], SOURCE, False), (GERMAN[1], TARGET, True)):
        pieces = sentencepiece.SentencePieceProcessor(model_proto=model).encode(text, out_type=str)
        assert tokenizer.encode(text, target=target) == [VOCABULARY.get(piece, 1) for piece in pieces]
    assert tokenizer.encode(GERMAN[1]) != tokenizer.encode(GERMAN[1], target=True)


@pytest.mark.parametrize("text", GERMAN)
def test_target_text_survives_the_round_trip(text: str) -> None:
    tokenizer = marian()
    ids = tokenizer.encode(text, target=True)
    assert tokenizer.decode([*ids, tokenizer.eos_id, tokenizer.pad_id]) == text


def test_pieces_outside_the_vocabulary_are_unknown_and_leave_no_trace_in_text() -> None:
    tokenizer = marian()
    rare = next(piece for piece in pieces_of(SOURCE)[-6:] if piece not in VOCABULARY)
    assert tokenizer.unk_id in tokenizer.encode(rare)
    assert tokenizer.encode("☃") == [VOCABULARY["▁"], tokenizer.unk_id]
    assert tokenizer.decode([tokenizer.unk_id, *tokenizer.encode("Zwei", target=True), tokenizer.unk_id]) == "Zwei"


def test_a_character_that_only_the_vocabulary_knows_is_known() -> None:
    assert "ü" not in pieces_of(SOURCE)
    assert marian().encode("ü")[-1] == VOCABULARY["ü"] != 1


def test_pieces_of_the_other_side_are_decoded_too() -> None:
    only_source = next(p for p in pieces_of(SOURCE) if p.startswith("▁") and len(p) > 3 and p not in pieces_of(TARGET))
    ids = [*marian().encode("Zwei", target=True), VOCABULARY[only_source]]
    assert marian().decode(ids) == f"Zwei {only_source[1:]}"


def test_a_language_code_is_one_token_before_the_text() -> None:
    tokenizer = marian()
    plain = tokenizer.encode(SENTENCES[0])
    assert tokenizer.encode(f">>deu<< {SENTENCES[0]}") == [VOCABULARY[">>deu<<"], *plain]
    assert tokenizer.encode(f" >>nld<<{SENTENCES[0]}") == [VOCABULARY[">>nld<<"], *plain]
    assert tokenizer.encode(">>deu<<  ") == []
    assert tokenizer.codes == sorted(CODES)


def test_an_unknown_language_code_lists_those_there_are() -> None:
    with pytest.raises(InvalidRequestError, match=r">>fra<<; this model has: >>deu<<, >>nld<<"):
        marian().encode(">>fra<< A dog.")


def test_without_codes_in_the_vocabulary_they_are_text() -> None:
    tokenizer = marian(vocabulary=joint_vocabulary(SOURCE, TARGET, codes=()))
    assert tokenizer.encode(">>deu<< A dog.") != tokenizer.encode("A dog.")
    assert tokenizer.codes == []


def test_text_cannot_name_special_tokens() -> None:
    source = pieces_model(SENTENCES, 120, user_defined_symbols=["<pad>", ">>deu<<"])
    tokenizer = marian(source, vocabulary=joint_vocabulary(source, TARGET))
    assert "<pad>" in sentencepiece.SentencePieceProcessor(model_proto=source).encode("A <pad>", out_type=str)
    ids = tokenizer.encode("A <pad> >>deu<< dog")
    assert not {tokenizer.pad_id, tokenizer.eos_id} & set(ids)
    assert tokenizer.unk_id in ids


def test_bpe_dropout_draws_other_pieces_of_the_same_text() -> None:
    tokenizer = marian(vocabulary={piece: i for i, piece in enumerate([*dict.fromkeys(
        [*pieces_of(SOURCE), *pieces_of(TARGET)]), "<pad>"])})  # fmt: skip
    drawn = {tuple(tokenizer.encode(SENTENCES[0], dropout=0.5)) for _ in range(20)}
    assert len(drawn) > 1
    assert {tokenizer.decode(ids) for ids in drawn} == {SENTENCES[0]}


def test_the_joint_form_is_the_sentencepiece_model_itself() -> None:
    processor = sentencepiece.SentencePieceProcessor(model_proto=tiny_tokenizer())
    tokenizer = open_tokenizer(tiny_tokenizer())
    assert isinstance(tokenizer, JointTokenizer)
    assert (
        tokenizer.encode(SENTENCES[2]) == tokenizer.encode(SENTENCES[2], target=True) == processor.encode(SENTENCES[2])
    )
    assert tokenizer.decode([*tokenizer.encode(SENTENCES[2]), 0, 2]) == SENTENCES[2]
    assert (tokenizer.size, tokenizer.eos_id, tokenizer.unk_id, tokenizer.pad_id) == (120, 0, 1, 2)
    assert tokenizer.decode([tokenizer.unk_id, *tokenizer.encode("A man"), tokenizer.unk_id]) == "A man"
    assert tokenizer.encode("A man 狗")[-1] == tokenizer.unk_id
    assert tokenizer.decode(tokenizer.encode("A man 狗")) == "A man"


@pytest.mark.parametrize(
    ("vocabulary", "problem"),
    [
        (b"{", "not JSON"),
        (b"[]", "one object"),
        (b'{"</s>": "0"}', "whole numbers"),
        (b'{"</s>": 0, "<unk>": 1}', "no entry '<pad>'"),
        (b'{"</s>": 0, "<unk>": 1, "<pad>": 3}', "ids of 3 entries must be 0 to 2"),
    ],
)
def test_a_broken_vocabulary_says_how(vocabulary: bytes, problem: str) -> None:
    assert problem in "\n".join(parse_vocabulary(vocabulary)[1])
    with pytest.raises(InvalidArtifactError, match=problem):
        open_tokenizer(MarianFiles(SOURCE, TARGET, vocabulary))


@pytest.mark.parametrize(("model", "problem"), [(b"", "empty"), (b"garbage", "not a SentencePiece model")])
def test_a_broken_model_names_the_file(model: bytes, problem: str) -> None:
    with pytest.raises(InvalidArtifactError, match=f"target.spm is {problem}"):
        marian(target=model)
    with pytest.raises(InvalidArtifactError, match=f"tokenizer.model is {problem}"):
        open_tokenizer(model)


@pytest.mark.parametrize("files", [tiny_tokenizer(), MarianFiles(b"s", b"t", b"v")])
def test_files_are_written_and_read_in_either_form(files: bytes | MarianFiles, tmp_path: Path) -> None:
    write_tokenizer(files, tmp_path)
    assert read_tokenizer(tmp_path) == files
    assert tokenizer_digest(files) == tokenizer_digest(read_tokenizer(tmp_path))


def test_half_a_tokenizer_and_two_tokenizers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArtifactError, match=r"tokenizer\.model is missing"):
        read_tokenizer(tmp_path)
    (tmp_path / "source.spm").write_bytes(b"s")
    with pytest.raises(InvalidArtifactError, match=r"target\.spm is missing\n.*vocab\.json is missing"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"s")
    with pytest.raises(InvalidArtifactError, match="two tokenizers: delete one"):
        read_tokenizer(tmp_path)

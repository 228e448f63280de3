"""Corpora and batches: formats, errors, determinism, the token budget."""

import errno
import gzip
import io
import json
import lzma
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from tests.tiny import SENTENCES, tiny_tokenizer

from hmc.artifact import InvalidRequestError
from hmc.artifact.storage.files import sha256_file
from hmc.training import Vocabulary, make_batch
from hmc.training.analysis.common.subject import read_text
from hmc.training.data.batches import BatchStream, plan_epoch
from hmc.training.data.corpus import Splitting, TokenCorpus
from hmc.training.data.counts import PairCounts
from hmc.training.data.parallel_text import DevText, read_dev, read_pairs

PAIRS = [(s, s.upper()) for s in SENTENCES]


def write(tmp_path: Path) -> tuple[str, str, str]:
    """The same pairs as two plain files, two gzip files and a TSV."""
    for side, name in ((0, "en"), (1, "de")):
        text = "".join(p[side] + "\n" for p in PAIRS)
        (tmp_path / f"t.{name}").write_text(text)
        (tmp_path / f"t.{name}.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "t.tsv").write_text("".join(f"{s}\t{t}\tignored\n" for s, t in PAIRS))
    t = tmp_path / "t"
    return f"{t}.en {t}.de", f"{t}.en.gz {t}.de.gz", f"{t}.tsv"


def test_every_format_reads_the_same(tmp_path: Path) -> None:
    for corpus in write(tmp_path):
        assert list(read_pairs(corpus)) == PAIRS


def test_several_tsv_files_are_shards(tmp_path: Path) -> None:
    """A blank line is a pair of two empty sides, which is left out later."""
    write(tmp_path)
    (tmp_path / "u.tsv").write_text("One.\tEins.\n\n")
    assert list(read_pairs(f"{tmp_path}/u.tsv {tmp_path}/t.tsv")) == [("One.", "Eins."), ("", ""), *PAIRS]


def test_dev_pairs_with_an_empty_side_are_not_scored(tmp_path: Path) -> None:
    (tmp_path / "d.tsv").write_text("\tLeer.\nOne.\tEins.\nTwo.\t \nThree.\tDrei.\nFour.\tVier.\n")
    assert read_dev(f"{tmp_path}/d.tsv", ("en", "de"), 2).pairs == [("One.", "Eins."), ("Three.", "Drei.")]


def test_dropout_of_merges_needs_bpe(tmp_path: Path) -> None:
    """In a unigram model SentencePiece takes the number as an exponent: the smaller it is, the more is split."""
    _, _, tsv = write(tmp_path)
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 5), model_writer=made, model_type="unigram", vocab_size=60, pad_id=3,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    vocabulary, splitting = Vocabulary(made.getvalue()), Splitting(0.1, 2, 1)
    with pytest.raises(InvalidRequestError, match="this tokenizer is unigram: set bpe_dropout to 0"):
        TokenCorpus.build([tsv], vocabulary, 64, tmp_path / "cache", ("en", "de"), splitting)
    assert not (tmp_path / "cache").exists()
    TokenCorpus.build([tsv], vocabulary, 64, tmp_path / "cache", ("en", "de"))


def test_clear_errors(tmp_path: Path) -> None:
    plain, _, _ = write(tmp_path)
    (tmp_path / "short.de").write_text("one\n")
    (tmp_path / "bad.en").write_bytes(b"\xff\n")
    (tmp_path / "wide.en").write_text("A dog.", encoding="utf-16")
    (tmp_path / "packed.en").write_bytes(gzip.compress(b"A dog."))
    (tmp_path / "packed.en.xz").write_bytes(lzma.compress(b"A dog."))
    (tmp_path / "bad.tsv").write_text("no tab here\n")
    (tmp_path / "plain.en.gz").write_text("one\n")
    (tmp_path / "cut.en.gz").write_bytes(gzip.compress(b"one\ntwo\n" * 999)[:-12])
    cases = {
        f"{tmp_path}/t.en {tmp_path}/short.de": "differ in length: one ends before line 2",
        f"{tmp_path}/none.en {tmp_path}/t.de": "no such file",
        f"{tmp_path}/bad.en {tmp_path}/bad.en": "not UTF-8 .*`iconv -f ISO-8859-1",
        f"{tmp_path}/wide.en {tmp_path}/t.de": "iconv -f UTF-16 -t UTF-8",
        f"{tmp_path}/packed.en {tmp_path}/t.de": r"packed by gzip: give it a name that ends in \.gz",
        f"{tmp_path}/packed.en.xz {tmp_path}/t.de": "packed by xz: unpack it first",
        f"{tmp_path}/bad.tsv": "line 1: no TAB",
        f"{tmp_path}/plain.en.gz {tmp_path}/t.de": "not a whole gzip file",
        f"{tmp_path}/cut.en.gz {tmp_path}/cut.en.gz": "not a whole gzip file",
        plain + " third": "give 'SRC TGT'",
        f"{tmp_path}/t.tsv {tmp_path}/t.de": r"t\.tsv has both sides, and cannot be one of two",
    }
    for corpus, message in cases.items():
        with pytest.raises(InvalidRequestError, match=message):
            list(read_pairs(corpus))


def test_a_line_ends_where_other_tools_end_it(tmp_path: Path) -> None:
    """Only a newline ends a line; a byte order mark is dropped. Otherwise later pairs would be shifted."""
    (tmp_path / "t.en").write_bytes("\ufeffA \rman.\r\nA\u2028dog.\x0c\n".encode())
    (tmp_path / "t.de").write_bytes(b"Ein Mann.\nEin \rHund.\n")
    assert list(read_pairs(f"{tmp_path}/t.en {tmp_path}/t.de")) == [
        ("A \rman.", "Ein Mann."), ("A\u2028dog.\x0c", "Ein \rHund."),
    ]  # fmt: skip


def test_paths_with_spaces_stand_in_quotes(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    write(folder)
    assert list(read_pairs(f"'{folder}/t.en' '{folder}/t.de'")) == PAIRS
    assert list(read_pairs(f'"{folder}/t.tsv"')) == PAIRS
    (tmp_path / "l'a\\b.tsv").write_text((folder / "t.tsv").read_text())  # an existing file needs no quotes
    assert list(read_pairs(f"{tmp_path}/l'a\\b.tsv")) == PAIRS
    with pytest.raises(InvalidRequestError, match=r"or 'hub:NAME'; paths with spaces in quotes"):
        list(read_pairs(f"{folder}/t.en {folder}/t.de"))
    with pytest.raises(InvalidRequestError, match="No closing quotation; put paths with spaces in quotes"):
        list(read_pairs(f"'{folder}/t.en {folder}/t.de"))


def test_the_first_sentences_of_files_that_do_not_pair_up(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "more.de").write_text((tmp_path / "t.de").read_text() + "Noch einer.\n")
    corpus = f"{tmp_path}/t.en {tmp_path}/more.de"
    with pytest.raises(InvalidRequestError, match=f"differ in length: one ends before line {len(PAIRS) + 1}"):
        read_dev(corpus, ("en", "de"), 2)
    with pytest.raises(InvalidRequestError, match="differ in length"):
        read_text(corpus, ("en", "de"), 2)
    assert read_dev(f"{tmp_path}/t.en {tmp_path}/t.de", ("en", "de"), 2).pairs == PAIRS[:2]


def test_a_corpus_that_the_hub_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidRequestError, match=r"corpus hub:nobody/nothing: cannot be read from the hub"):
        list(read_pairs("hub:nobody/nothing"))


@pytest.fixture
def corpus(tmp_path: Path) -> TokenCorpus:
    plain, _, _ = write(tmp_path)
    return TokenCorpus.build([plain], Vocabulary(tiny_tokenizer()), 200, tmp_path / "cache", ("en", "de"))


def test_tokenised_corpus_keeps_pairs_and_is_reused(tmp_path: Path, corpus: TokenCorpus) -> None:
    vocabulary = Vocabulary(tiny_tokenizer())
    source, target = corpus.batch(np.array([0, 5]))
    assert source == [vocabulary.encode(SENTENCES[i]) for i in (0, 5)]
    assert [len(t) for t in target] == corpus.target_lengths[[0, 5]].tolist()
    files = {f: f.stat().st_mtime_ns for f in (tmp_path / "cache").rglob("*.arrow")}
    TokenCorpus.build([f"{tmp_path}/t.en {tmp_path}/t.de"], vocabulary, 200, tmp_path / "cache", ("en", "de"))
    assert files == {f: f.stat().st_mtime_ns for f in (tmp_path / "cache").rglob("*.arrow")}


def test_drawn_tokens_are_found_again_wherever_the_text_lies(tmp_path: Path) -> None:
    plain, _, _ = write(tmp_path)
    vocabulary, drawn = Vocabulary(tiny_tokenizer()), Splitting(0.3, 2, 1)

    def built(corpus: str) -> str:
        return TokenCorpus.build([corpus], vocabulary, 200, tmp_path / "cache", ("en", "de"), drawn).fingerprint

    first = built(plain)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in plain.split():
        (moved / f"renamed{Path(name).suffix}").write_bytes(Path(name).read_bytes())
    assert built(f"{moved}/renamed.en {moved}/renamed.de") == first
    (moved / "renamed.en").write_text("Another text.\n" * len(PAIRS))
    assert built(f"{moved}/renamed.en {moved}/renamed.de") != first


@pytest.mark.parametrize("splitting", [Splitting(), Splitting(0.3, 2, 1)], ids=["whole", "drawn"])
def test_text_is_known_by_its_bytes(tmp_path: Path, splitting: Splitting) -> None:
    """Neither the time nor the place of a file counts, and a time that was put back hides no other text."""
    plain, _, _ = write(tmp_path)
    vocabulary, cache = Vocabulary(tiny_tokenizer()), tmp_path / "cache"

    def built(corpus: str) -> TokenCorpus:
        return TokenCorpus.build([corpus], vocabulary, 200, cache, ("en", "de"), splitting)

    first = built(plain)
    english = tmp_path / "t.en"
    before = english.stat()
    os.utime(english, (1, 1))
    assert built(plain).folder == first.folder
    (tmp_path / "linked.en").symlink_to(english)
    assert built(f"{tmp_path}/../{tmp_path.name}/linked.en {tmp_path}/t.de").folder == first.folder
    text = english.read_text()
    english.write_text(text.swapcase())
    os.utime(english, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert built(plain).folder != first.folder
    english.write_text(text)
    assert built(plain).fingerprint == first.fingerprint
    assert len(list(cache.glob("*/dataset_info.json"))) == 2


def test_unchanged_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _, _ = write(tmp_path)
    vocabulary, cache = Vocabulary(tiny_tokenizer()), tmp_path / "cache"
    read = list[str]()

    def counted(path: Path) -> str:
        read.append(path.name)
        return sha256_file(path)

    def built() -> Path:
        read.clear()
        return TokenCorpus.build([plain], vocabulary, 200, cache, ("en", "de")).folder

    monkeypatch.setattr("hmc.artifact.storage.files.sha256_file", counted)
    folder = built()
    assert {"t.en", "t.de"} <= set(read)
    assert built() == folder
    assert not {"t.en", "t.de"} & set(read)
    os.utime(tmp_path / "t.en", (1, 1))
    assert built() == folder
    assert "t.en" in read
    assert "t.de" not in read


@pytest.mark.parametrize("damage", ["not JSON", "[]", '{"PLACE": 3}', "another digest"])
def test_a_damaged_memory_of_files_changes_no_tokens(tmp_path: Path, damage: str) -> None:
    """With BPE-dropout other tokens would be drawn, and the run could not go on."""
    plain, _, _ = write(tmp_path)
    vocabulary, memory = Vocabulary(tiny_tokenizer()), tmp_path / "cache" / "files.json"

    def built() -> Path:
        drawn = Splitting(0.3, 2, 1)
        return TokenCorpus.build([plain], vocabulary, 200, tmp_path / "cache", ("en", "de"), drawn).folder

    folder, whole = built(), memory.read_text()
    entries = json.loads(whole)
    digest = next(iter(entries.values()))["sha256"]
    broken = damage.replace("PLACE", next(iter(entries)))
    memory.write_text(whole.replace(digest, digest[::-1]) if damage == "another digest" else broken)
    assert built() == folder
    assert memory.read_text() == whole


def test_other_tokens_are_dropped_and_nothing_else(tmp_path: Path, corpus: TokenCorpus) -> None:
    cache = tmp_path / "cache"
    for name in ("0123456789abcdef", "arrow", "notes", "0123456789abcdef.old"):
        (cache / name).mkdir()
        (cache / name / "a").write_text("a")
    corpus.drop_others()
    assert {entry.name for entry in cache.iterdir()} == {
        corpus.folder.name, "files.json", "notes", "0123456789abcdef.old",
    }  # fmt: skip
    corpus.batch(np.array([0]))


def test_the_dev_text_of_a_state_was_longer() -> None:
    long, short = (DevText(PAIRS[:n], PAIRS[:n]) for n in (4, 2))
    with pytest.raises(InvalidRequestError, match=r"scored on 4 pairs .* run\.eval_sentences=4 or more"):
        short.check_same(long.fingerprint, Path("state"))
    long.check_same(short.fingerprint, Path("state"))


def test_a_full_disk_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Iterator[tuple[str, str]]:
        yield PAIRS[0]
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hmc.training.data.corpus.read_pairs", full)
    with pytest.raises(OSError, match="No space left"):
        TokenCorpus.build(["a b"], Vocabulary(tiny_tokenizer()), 200, tmp_path / "cache", ("en", "de"))


def test_an_epoch_uses_every_pair_once_within_the_budget(corpus: TokenCorpus) -> None:
    plan = plan_epoch(corpus, 256, seed=1, epoch=0)
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(corpus)))
    longest = np.maximum(corpus.source_lengths, corpus.target_lengths)
    assert all(len(rows) == 1 or len(rows) * longest[rows].max() <= 128 for rows in plan)
    again, other = plan_epoch(corpus, 256, 1, 0), plan_epoch(corpus, 256, 1, 1)
    assert all(np.array_equal(a, b) for a, b in zip(plan, again, strict=True))
    assert [r.tolist() for r in plan] != [r.tolist() for r in other]


def test_a_stream_resumes_where_it_was(corpus: TokenCorpus) -> None:
    first = BatchStream(corpus, 256, 1, 2)
    iterator = iter(first)
    for _ in range(7):
        next(iterator)
    second = BatchStream(corpus, 256, 1, 2)
    second.epoch, second.index = first.epoch, first.index
    for a, b in zip((next(iterator) for _ in range(9)), iter(second), strict=False):
        assert a.source.equal(b.source)
        assert a.target_out.equal(b.target_out)


def test_processes_share_an_epoch_without_overlap(corpus: TokenCorpus) -> None:
    per_rank = [
        [next(it).source.tolist() for _ in range(2)]
        for it in (iter(BatchStream(corpus, 128, 1, 2, r, 2)) for r in (0, 1))
    ]
    assert not any(a == b for a in per_rank[0] for b in per_rank[1])


def test_the_decoder_reads_what_it_predicts_shifted_by_one() -> None:
    batch = make_batch([[5, 0]], [[7, 8, 0]], 2)
    assert batch.target_in.tolist() == [[2, 7, 8]]
    assert batch.target_out.tolist() == [[7, 8, 0]]


def test_a_batch_knows_its_padding() -> None:
    padded = make_batch([[5, 0], [5, 6, 0]], [[7, 8, 0], [9, 0]], 2)
    assert (padded.source_padded, padded.tokens) == (True, 5)
    assert padded.target_out.flatten()[padded.real].tolist() == [7, 8, 0, 9, 0]
    assert not make_batch([[5, 0], [6, 0]], [[7, 8, 0], [9, 0]], 2).source_padded


def test_tokens_of_other_languages_are_other_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub corpus has a column for each language: the cache must not confuse them."""

    def rows(_: str, languages: tuple[str, str], _counts: PairCounts) -> Iterator[tuple[str, str]]:
        yield from ((s, s.upper() if languages[1] == "de" else s[::-1]) for s in SENTENCES)

    monkeypatch.setattr("hmc.training.data.corpus.read_pairs", rows)
    vocabulary, cache = Vocabulary(tiny_tokenizer()), tmp_path / "cache"
    german, french, again = (
        TokenCorpus.build(["hub:some/name"], vocabulary, 200, cache, ("en", language))
        for language in ("de", "fr", "de")
    )
    assert german.batch(np.array([0]))[1] == [vocabulary.encode(SENTENCES[0].upper(), target=True)]
    assert french.batch(np.array([0]))[1] == [vocabulary.encode(SENTENCES[0][::-1], target=True)]
    assert again.fingerprint == german.fingerprint != french.fingerprint


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing", "emptied"])
def test_damaged_tokens_are_made_again(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    """Memory-mapped tokens are trusted: a flipped offset trains on other text, or ends the process."""
    plain, _, _ = write(tmp_path)
    vocabulary = Vocabulary(tiny_tokenizer())

    def built() -> TokenCorpus:
        return TokenCorpus.build([plain], vocabulary, 200, tmp_path / "cache", ("en", "de"))

    fingerprint = built().fingerprint
    [file] = (tmp_path / "cache").rglob("data-*.arrow")
    content = file.read_bytes()
    if damage == "cut":
        file.write_bytes(content[:-1000])
    elif damage == "flipped":
        file.write_bytes(content[:2000] + bytes([content[2000] ^ 64]) + content[2001:])
    elif damage == "emptied":
        file.write_bytes(b"")
    else:
        file.unlink()
    with caplog.at_level("WARNING"):
        assert built().fingerprint == fingerprint
    [record] = caplog.records
    assert f"{file.parent} are damaged, and are made again: {file.name}" in record.getMessage()
    assert file.read_bytes() == content
    caplog.clear()
    assert built().fingerprint == fingerprint
    assert caplog.records == []

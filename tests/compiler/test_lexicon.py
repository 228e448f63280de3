"""Lexicons learned from text: compared with a simple Model 1, tested on text with known alignment and on real text."""

from __future__ import annotations

import gzip
from collections import defaultdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.trained import CHECKPOINT
from tests.tiny import SENTENCES, tiny_architecture, tiny_tokenizer

from hmc.artifact import InvalidRequestError
from hmc.artifact.bundle.shortlist import Lexicon
from hmc.artifact.tokenizer.tokenizer import JointTokenizer
from hmc.compiler import lexicon as module
from hmc.compiler.lexicon import Bitext, TranslationTable, encode_pairs, learn_lexicon, translation_table

EOS, UNK, PAD = 0, 1, 2
Pairs = list[tuple[list[int], list[int]]]


def learn(pairs: Any, vocab_size: int, *, best: int = 1, frequent: int = 1) -> Lexicon:
    """`learn_lexicon` with the usual special tokens."""
    return learn_lexicon(pairs, tiny_architecture(vocab_size=vocab_size), best=best, frequent=frequent)


def translations(lexicon: Lexicon) -> dict[int, list[int]]:
    """Source token → its translations, for those that have any."""
    rows = np.split(lexicon.targets, lexicon.starts[1:-1])
    return {token: row.tolist() for token, row in enumerate(rows) if len(row)}


def model_1(pairs: Pairs, rounds: int) -> dict[tuple[int | None, int], float]:
    """t(target | source), word by word; None is the empty word."""
    t: dict[tuple[int | None, int], float] = defaultdict(lambda: 1.0)
    for _ in range(rounds):
        counts: dict[tuple[int | None, int], float] = defaultdict(float)
        totals: dict[int | None, float] = defaultdict(float)
        for source, target in pairs:
            for f in target:
                norm = sum(t[e, f] for e in [None, *source])
                for e in [None, *source]:
                    counts[e, f] += t[e, f] / norm
                    totals[e] += t[e, f] / norm
        t = defaultdict(float, {(e, f): count / totals[e] for (e, f), count in counts.items()})
    return t


def random_pairs(count: int, vocab_size: int, seed: int = 0) -> Pairs:
    """Pairs of 1 to 6 ordinary tokens a side; tokens occur more than once in a sentence."""
    rng = np.random.default_rng(seed)
    sides = [rng.integers(3, vocab_size, rng.integers(1, 7)).tolist() for _ in range(2 * count)]
    return list(zip(sides[::2], sides[1::2], strict=True))


@pytest.mark.parametrize("at_once", [1, 50, 8_000_000])
def test_probabilities_are_those_of_model_1(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(module, "LINKS_AT_ONCE", at_once)
    pairs = random_pairs(40, 15)
    table = translation_table(Bitext.read(pairs, (15, 15), (EOS, PAD)), (15, 15))
    expected = {(15 if e is None else e, f): p for (e, f), p in model_1(pairs, module.ITERATIONS).items()}
    found = list(zip(table.source.tolist(), table.target.tolist(), strict=True))
    assert found == sorted(expected)
    assert table.probability == pytest.approx([expected[pair] for pair in found], rel=1e-9)


def known_alignment(count: int = 300) -> tuple[Pairs, dict[int, int]]:
    """Source word i means target word 30 + i. Every sentence also has the words 20 (means 50) and 21 (means 51)."""
    rng = np.random.default_rng(3)
    pairs: Pairs = []
    for _ in range(count):
        content = rng.choice(np.arange(3, 18), rng.integers(2, 6), replace=False)
        order = rng.permutation(len(content))
        pairs.append(([20, *content.tolist(), 21], [50, *(content[order] + 30).tolist(), 51]))
    return pairs, {word: word + 30 for word in range(3, 18)}


def test_known_translations_are_found_among_frequent_function_words() -> None:
    pairs, meanings = known_alignment()
    lexicon = learn(pairs, 60, best=1, frequent=2)
    assert {word: row for word, row in translations(lexicon).items() if word in meanings} == {
        word: [meaning] for word, meaning in meanings.items()
    }
    assert lexicon.always.tolist() == [EOS, UNK, 50, 51]
    assert lexicon.problems(tiny_architecture(vocab_size=60)) == []


def test_a_word_with_two_translations_has_both_best_first() -> None:
    pairs, _ = known_alignment()
    renamed = [(s, [55 if t == 33 and n % 3 == 0 else t for t in target]) for n, (s, target) in enumerate(pairs)]
    assert translations(learn(renamed, 60, best=2))[3] == [33, 55]


def test_translations_are_ordered_and_cut_by_count_and_by_probability() -> None:
    pairs = random_pairs(60, 20, seed=1)
    t = model_1(pairs, module.ITERATIONS)
    found = translations(learn(pairs, 20, best=6))
    for source in range(3, 20):
        ranked = sorted((target for e, target in t if e == source), key=lambda target: -t[source, target])
        likely = [target for target in ranked if t[source, target] >= module.LEAST_PROBABILITY]
        assert found[source] == likely[:6]
    everything = translations(learn(pairs, 20, best=20))
    assert any(t[e, f] < module.LEAST_PROBABILITY for e, f in t if e is not None)
    assert {(e, f) for e, row in everything.items() for f in row} == {
        (e, f) for (e, f), p in t.items() if e is not None and p >= module.LEAST_PROBABILITY
    }


def test_end_of_sentence_and_padding_change_nothing() -> None:
    pairs, _ = known_alignment(50)
    plain = learn(pairs, 60, best=5, frequent=5)
    padded = learn([([*s, EOS, PAD], [*t, EOS, PAD, PAD]) for s, t in pairs], 60, best=5, frequent=5)
    assert translations(padded) == translations(plain)
    assert padded.always.tolist() == plain.always.tolist()


def test_ties_go_to_the_smaller_token() -> None:
    pairs = [([5, 6], [12, 11]), ([5, 6], [11, 12]), ([7], [14, 13, 13, 14])]
    lexicon = learn(pairs, 20, best=1, frequent=3)
    assert translations(lexicon) == {5: [11], 6: [11], 7: [13]}
    assert lexicon.always.tolist() == [EOS, UNK, 11, 12, 13]
    assert translations(learn(pairs, 20, best=2)) == {5: [11, 12], 6: [11, 12], 7: [13, 14]}


def test_rounding_errors_do_not_part_equals() -> None:
    source, target = np.array([4, 4, 4], np.int32), np.array([5, 6, 7], np.int32)
    table = TranslationTable(source, target, np.array([0.3, 0.3 * (1 + 1e-15), 0.4]))
    starts, targets = table.best(2, 1e-3, 8)
    assert starts.tolist() == [0, 0, 0, 0, 0, 2, 2, 2, 2]
    assert targets.tolist() == [7, 5]


def test_tokens_that_never_occur_are_not_frequent() -> None:
    assert learn([([5], [11, 12, 11])], 20, frequent=20).always.tolist() == [EOS, UNK, 11, 12]


def test_an_iterator_of_pairs_will_do() -> None:
    pairs, _ = known_alignment(50)
    assert translations(learn(iter(pairs), 60)) == translations(learn(pairs, 60))


def test_long_corpora_are_sampled_evenly_but_counted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [([3 + n], [3 + n, 3 + n]) for n in range(90)]  # 4 links a pair
    bitext = Bitext.read(pairs, (100, 100), (EOS, PAD))
    assert bitext.sampled(360) is bitext
    kept = bitext.sampled(40)
    assert kept.source.tolist() == [3 + n for n in (0, 9, 19, 29, 39, 49, 59, 69, 79, 89)]
    assert kept.target.tolist() == np.repeat(kept.source, 2).tolist()
    assert (kept.source_lengths.tolist(), kept.target_lengths.tolist()) == ([1] * 10, [2] * 10)
    monkeypatch.setattr(module, "MAX_LINKS", 40)
    lexicon = learn(pairs, 100, frequent=100)
    assert list(translations(lexicon)) == kept.source.tolist()
    assert len(lexicon.always) == 92


@pytest.mark.parametrize(
    ("pairs", "settings", "message"),
    [
        ([], {}, "no sentence pair has words on both sides"),
        ([([], [5]), ([5], []), ([5], [EOS])], {}, "no sentence pair has words on both sides"),
        ([([5], [6])], {"best": 0}, r"best 0: choose 1 to 10"),
        ([([5], [6])], {"best": 11}, r"best 11: choose 1 to 10"),
        ([([5], [6])], {"frequent": -1}, r"frequent -1: choose 1 to 10"),
        ([([5], [6])], {"frequent": 11}, r"frequent 11: choose 1 to 10"),
        ([([5, 10], [6])], {}, r"source token 10 is outside the vocabulary, 0 to 9"),
        ([([5], [6, -3])], {}, r"target token -3 is outside the vocabulary, 0 to 9"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(pairs: Pairs, settings: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        learn(pairs, 10, **settings)


def test_texts_of_unequal_counts_are_refused_before_any_is_encoded() -> None:
    with pytest.raises(InvalidRequestError, match="12 source and 11 target texts"):
        encode_pairs(SENTENCES, SENTENCES[:-1], JointTokenizer(tiny_tokenizer()))


def test_texts_become_ids_without_end_of_sentence() -> None:
    tokenizer = JointTokenizer(tiny_tokenizer())
    pairs = list(encode_pairs(SENTENCES[:2], ["", SENTENCES[3]], tokenizer))
    assert pairs == [(tokenizer.encode(SENTENCES[0]), []), tuple(map(tokenizer.encode, (SENTENCES[1], SENTENCES[3])))]


def _first_lines(file: Path, count: int) -> list[str]:
    if not file.is_file():
        pytest.skip(f"HMC_DATA has no {file.name}")
    with gzip.open(file, "rt", encoding="utf-8") as handle:
        return [line.rstrip("\n") for line in islice(handle, count)]


def test_real_text(data: Path) -> None:
    """English words of Multi30k get their German translations."""
    tokenizer = JointTokenizer((CHECKPOINT / "tokenizer.model").read_bytes())
    sources, targets = (_first_lines(data / f"multi30k/train.{side}.gz", 8000) for side in ("en", "de"))
    lexicon = learn(encode_pairs(sources, targets, tokenizer), tokenizer.size, best=5, frequent=50)
    for english, german in (("dog", "Hund"), ("guitar", "Gitarre"), ("water", "Wasser"), ("red", "roten")):
        source, target = tokenizer.find(f"▁{english}"), tokenizer.find(f"▁{german}")
        assert source is not None
        assert target in translations(lexicon)[source]

"""The shortlists of a running batch: one projection for all sentences, and each sentence's own tokens in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.serving.reference import TEXTS

from hmc.artifact import read_manifest
from hmc.artifact.bundle.shortlist import Lexicon
from hmc.engine.arrays import Arrays, Ints
from hmc.engine.caches.shortlists import ROUND_LIST, Shortlists
from hmc.engine.scheduling.engine import Engine
from hmc.serving import DecodeOptions, Sampling, Translator

PAD, VOCABULARY = 2, 300


def project(tokens: npt.NDArray[np.int64]) -> Arrays:
    """A projection in which a token's bias is its number."""
    return {"output_weight": tokens[:, None].astype(np.float32), "output_bias": tokens.astype(np.float32)}


def candidates(source: Sequence[int], known: Sequence[int]) -> Ints:
    """A lexicon that lists a source's own tokens and the known ones."""
    return np.union1d(source, known).astype(np.int64)


def check(lists: Shortlists, expected: Sequence[Sequence[int]], beam: int) -> None:
    """Every row has its own tokens first, and after them only positions that cannot be chosen."""
    inputs = lists.inputs
    assert inputs["listed"].shape == inputs["listed_ids"].shape == (len(expected) * beam, lists.width)
    assert lists.width % ROUND_LIST == 0
    for row in range(len(expected) * beam):
        own = expected[row // beam]
        biases = inputs["output_bias"][inputs["listed"][row]]
        assert biases[: len(own)].tolist() == list(own) == inputs["listed_ids"][row, : len(own)].tolist()
        assert len(own) < lists.width
        assert set(biases[len(own) :]) == {-np.inf}
        assert set(inputs["listed_ids"][row, len(own) :]) == {PAD}


@pytest.mark.parametrize("beam", [1, 3])
def test_sentences_come_and_go(beam: int) -> None:
    rng = np.random.default_rng(beam)
    own = [sorted(rng.choice(np.arange(3, VOCABULARY), n, replace=False).tolist()) for n in (5, 128, 40, 127)]
    lists = Shortlists(project, candidates, VOCABULARY, PAD, beam)
    lists.add(own[:2], [()] * 2)
    check(lists, own[:2], beam)
    lists.add(own[2:], [()] * 2)
    check(lists, own, beam)
    lists.keep([3, 0])
    check(lists, [own[3], own[0]], beam)
    lists.keep([])
    lists.add(own[:1], [()])
    check(lists, own[:1], beam)
    assert lists.width == ROUND_LIST  # the width that long lists needed is gone with them


def test_token_ids_become_positions_in_lists() -> None:
    lists = Shortlists(project, candidates, VOCABULARY, PAD, 2)
    lists.add([[4, 9], [7, 200]], [[7], []])
    step = {"wanted": np.array([7, 9, 7, 200]), "banned": np.array([[4, 8], [9, 299], [7, 9], [200, 3]])}
    lists.translate(step)
    assert step["wanted"].tolist() == [1, 2, 0, 1]
    assert step["banned"].tolist() == [[0, 3], [2, 3], [0, 2], [1, 2]]  # 8, 299, 9, 3 are in no list of their rows
    assert lists.inputs["output_bias"][lists.inputs["listed"][[0, 2], [3, 2]]].tolist() == [-np.inf] * 2


@pytest.mark.parametrize("name", ["full-int8-shortlist", "full-int4-shortlist"])
def test_only_listed_tokens_are_written(listed_bundle: Path, name: str) -> None:
    manifest = read_manifest(listed_bundle)
    lexicon = Lexicon.load(listed_bundle / str(manifest.level(name).shortlist), manifest.architecture)
    with Translator(listed_bundle, name, device="cpu", threads=1) as translator:
        assert translator.level.shortlist
        for options in (DecodeOptions(beam_size=1), DecodeOptions(), DecodeOptions(sampling=Sampling(seed=1))):
            for text in TEXTS:
                source, _ = translator._tokenizer.encode(text)
                found = translator._engine.submit(source, options).result()
                allowed = set(lexicon.candidates(source).tolist())
                assert len(allowed) < 0.7 * manifest.architecture.vocab_size
                assert all(set(h.ids) <= allowed for h in found.hypotheses)


def test_a_prefix_may_hold_any_token(listed_bundle: Path) -> None:
    with Translator(listed_bundle, "full-int8-shortlist", device="cpu", threads=1) as translator:
        source, _ = translator._tokenizer.encode(TEXTS[0])
        engine = translator._engine
        assert isinstance(engine, Engine)
        lexicon = engine.sessions.lexicon
        assert lexicon is not None
        words = [t for t in TEXTS if not set(translator._tokenizer.encode(t)[0]) <= set(lexicon.candidates(source))]
        assert words, "every text is within the list: the test says nothing"
        found = translator.translate([TEXTS[0]] * len(words), target_prefixes=words, segmentation="none")
        assert all(f.text.startswith(word) for f, word in zip(found, words, strict=True))
        assert all(np.isfinite(t.score) for t in translator.score([TEXTS[0]] * len(words), words))

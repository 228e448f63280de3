"""Sampling draws what the reference's probabilities and the same random numbers give, alone and in batches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.serving.reference import LIMIT, TEXTS, Pieces, Reference, source_ids

from hmc.artifact import InvalidRequestError
from hmc.engine.decoding.sampling import draw
from hmc.serving import DecodeOptions, Sampling, Translator

CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"temperature": 0.5}, {}),
    ({"temperature": 2.0}, {"min_length": 6}),
    ({"top_k": 1}, {}),
    ({"top_k": 5}, {"suppress_unknown": True}),
    ({"top_p": 0.7}, {}),
    ({"top_p": 0.05}, {"no_repeat_ngram_size": 1}),
    ({"temperature": 1.5, "top_k": 20, "top_p": 0.8}, {"repetition_penalty": 1.5}),
    ({}, {"repetition_penalty": 2.0, "no_repeat_ngram_size": 2, "min_length": 4, "suppress_unknown": True}),
]


def options_of(case: tuple[dict[str, Any], dict[str, Any]], *, seed: int = 7, n_best: int = 3) -> DecodeOptions:
    sampling, others = case
    fields: dict[str, Any] = {"n_best": n_best, "max_length": LIMIT, "token_scores": True}
    return DecodeOptions(sampling=Sampling(seed=seed, **sampling), **(fields | others))


def distribution(log_probs: np.ndarray, may: np.ndarray, sampling: Sampling) -> np.ndarray:
    """`[V]`: the probability of drawing each token."""
    tempered = np.where(may, log_probs / sampling.temperature, -np.inf)
    mass = np.exp(tempered - tempered.max())
    order = np.argsort(-mass, kind="stable")
    if sampling.top_k:
        mass[order[sampling.top_k :]] = 0
    mass /= mass.sum()
    before = np.cumsum(mass[order]) - mass[order]
    mass[order[before >= sampling.top_p]] = 0
    return np.asarray(mass / mass.sum())


def sample(reference: Reference, source: tuple[int, ...], options: DecodeOptions, row: int) -> tuple[int, ...]:
    """One sample. A random number selects from the cumulative distribution: by id among all tokens, by rank among the
    best few."""
    sampling = options.sampling
    target: tuple[int, ...] = ()
    assert sampling is not None
    uniforms = np.random.default_rng([sampling.seed or 0, row]).random(LIMIT, dtype=np.float32)
    for step in range(LIMIT):
        log_probs = reference.log_probs(source, target, options.repetition_penalty)
        mass = distribution(log_probs, reference.allowed(target, options), sampling)
        order = np.argsort(-mass, kind="stable") if sampling.truncated else np.arange(len(mass))
        token = int(order[np.searchsorted(np.cumsum(mass[order]), uniforms[step], side="right")])
        target = (*target, token)
        if token == 0:
            break
    return target


@pytest.mark.parametrize("case", CASES, ids=str)
def test_draws_what_the_reference_draws(
    translator: Translator, reference: Reference, pieces: Pieces, case: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    options = options_of(case)
    for text, found in zip(TEXTS, translator.translate(TEXTS, options, segmentation="none"), strict=True):
        source = source_ids(pieces, text)
        samples = found.hypotheses
        drawn = Counter(tuple(pieces.piece_to_id(t.piece) for t in s.tokens) for s in samples)
        assert drawn == Counter(sample(reference, source, options, row) for row in range(options.n_best))
        for s in samples:
            ids = tuple(pieces.piece_to_id(t.piece) for t in s.tokens)
            expected = [
                reference.log_probs(source, ids[:n], options.repetition_penalty)[token] for n, token in enumerate(ids)
            ]
            assert [t.score for t in s.tokens] == pytest.approx(expected, abs=2e-4)
            assert s.score == pytest.approx(sum(expected) / len(ids), abs=2e-4)
        assert [s.score for s in samples] == sorted((s.score for s in samples), reverse=True)


def test_samples_do_not_depend_on_the_rest_of_the_batch(translator: Translator) -> None:
    jobs = [(t, options_of(case, seed=s, n_best=1 + s)) for case in CASES for s in range(2) for t in TEXTS]
    jobs += [(t, DecodeOptions(beam_size=2, max_length=LIMIT)) for t in TEXTS]
    together = [future.result() for future in [translator.submit(t, o, block=True) for t, o in jobs]]
    for (text, options), found in zip(jobs, together, strict=True):
        alone = translator.translate([text], options, segmentation="none")[0]
        assert [h.text for h in found.hypotheses] == [h.text for h in alone.hypotheses]


def test_seeds_differ_and_no_seed_differs_each_time(translator: Translator) -> None:
    text, hot = TEXTS[1], {"temperature": 3.0}
    seeded = [
        translator.translate([text], options_of((hot, {}), seed=s, n_best=1), segmentation="none")[0].text
        for s in range(8)
    ]
    assert len(set(seeded)) >= 6
    free = DecodeOptions(sampling=Sampling(temperature=3.0), max_length=LIMIT)
    assert len({translator.translate([text], free, segmentation="none")[0].text for _ in range(8)}) >= 6


@pytest.mark.parametrize("case", [{"temperature": 1.3}, {"top_p": 0.9, "temperature": 1.3}, {"top_k": 6}], ids=str)
def test_frequencies_are_the_probabilities(
    translator: Translator, reference: Reference, pieces: Pieces, case: dict[str, Any]
) -> None:
    text, draws = TEXTS[2], 1600
    counts: Counter[int] = Counter()
    for seed in range(draws // 16):
        options = DecodeOptions(
            n_best=16,
            max_length=1,
            token_scores=True,
            sampling=Sampling(seed=seed, **case),
        )
        found = translator.translate([text], options, segmentation="none")[0]
        counts.update(pieces.piece_to_id(h.tokens[0].piece) for h in found.hypotheses)
    may = reference.allowed((), DecodeOptions())
    sampling = Sampling(**case)
    expected = distribution(reference.log_probs(source_ids(pieces, text), ()), may, sampling)
    assert all(expected[token] > 0 for token in counts)
    likely = expected * draws >= 8
    found_counts = np.array([counts[token] for token in range(len(expected))])
    z = (found_counts - expected * draws)[likely] / np.sqrt(expected * draws * (1 - expected))[likely]
    assert likely.sum() >= 4
    assert np.abs(z).max() < 4


def test_a_sampled_translation_may_be_given_a_prefix(translator: Translator, pieces: Pieces) -> None:
    found = translator.translate(TEXTS, options_of(({}, {})), ["A man"] * len(TEXTS), segmentation="none")
    start = pieces.encode("A man", out_type=str)
    for h in (h for t in found for h in t.hypotheses):
        assert [t.piece for t in h.tokens][: len(start)] == start


def test_when_every_token_is_suppressed_the_sample_ends(translator: Translator, pieces: Pieces) -> None:
    names = tuple(pieces.id_to_piece(i) for i in range(3, 120))
    for sampling in (Sampling(seed=1), Sampling(seed=1, top_p=0.5)):
        options = DecodeOptions(sampling=sampling, suppressed_tokens=names, suppress_unknown=True, min_length=3)
        for found in translator.translate(TEXTS, options, segmentation="none"):
            assert (found.text, found.target_tokens, found.hit_max_length) == ("", 0, True)


def test_a_nucleus_is_cut_at_256_however_many_candidates_there_are() -> None:
    """Another sentence of the batch may need more candidates. The weights `[R, K]` are flat: top_p 0.9 takes 360."""
    rng = np.random.default_rng(0)
    weights = np.sort(rng.dirichlet(np.full(400, 50.0), 64).astype(np.float32), axis=1)[:, ::-1]
    numbers, nucleus = rng.random(64, dtype=np.float32), [Sampling(top_p=0.9)] * 64
    found = [draw(weights[:, :width], nucleus, numbers) for width in (258, 300, 400)]
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()
    assert 200 < max(found[0]) < 256
    among = [Sampling(top_k=30, top_p=0.9)] * 64
    assert (draw(weights[:, :32], among, numbers) == draw(weights, among, numbers)).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": 0.0}, "temperature 0.0: choose 0.01 to 100"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"top_k": 0}, "top_k 0: choose 1 to 256"),
        ({"top_p": 0.0}, "top_p 0.0: choose more than 0, up to 1"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_values_out_of_range(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        Sampling(**values)


@pytest.mark.parametrize("values", [{"patience": 1.0}, {"coverage_penalty": 0.5}, {"n_best": 17}])
def test_options_that_sampling_excludes(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=r"leave them out when sampling|n_best 17: choose 1 to 16"):
        DecodeOptions(sampling=Sampling(), **values)

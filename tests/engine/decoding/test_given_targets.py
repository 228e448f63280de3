"""Target prefixes, and scores of given translations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.serving.reference import LIMIT, TEXTS, Pieces, Reference, assert_same, source_ids

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import FailedPreconditionError
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.scheduling.engine import Engine
from hmc.engine.scheduling.planning import plan_job
from hmc.serving import DecodeOptions, Sampling, Target, Translator
from hmc.serving.requests.options import scoring_options

PREFIXES = ["A man", "", "wet grass", "Children are", "s", "the", "A", "red dress eats"]


@pytest.mark.parametrize(
    "case",
    [{}, {"beam_size": 1, "n_best": 1}, {"no_repeat_ngram_size": 1}, {"min_length": 8, "repetition_penalty": 1.5}],
    ids=str,
)
def test_a_prefix_is_kept_and_scored(
    translator: Translator, reference: Reference, pieces: Pieces, case: dict[str, Any]
) -> None:
    fields: dict[str, Any] = {"beam_size": 4, "n_best": 4, "max_length": LIMIT, "token_scores": True}
    options = DecodeOptions(**(fields | case))
    for text, prefix, found in zip(
        TEXTS, PREFIXES, translator.translate(TEXTS, options, PREFIXES, segmentation="none"), strict=True
    ):
        ids = tuple(pieces.encode(prefix))
        assert_same(
            found,
            reference.beam_search(source_ids(pieces, text), options, limit=LIMIT, prefix=ids),
            pieces,
            options.n_best,
        )
        assert all(h.text.startswith(prefix) for h in found.hypotheses)


def test_scoring_a_translation_gives_the_score_it_was_found_with(translator: Translator, pieces: Pieces) -> None:
    seen = 0
    cases: list[dict[str, Any]] = [{}, {"length_penalty": 0.5, "repetition_penalty": 1.4}, {"coverage_penalty": 0.3}]
    for penalties in cases:
        options = DecodeOptions(beam_size=3, n_best=3, max_length=60, token_scores=True, **penalties)
        for text, t in zip(TEXTS, translator.translate(TEXTS, options, segmentation="none"), strict=True):
            for h in t.hypotheses:
                ids = tuple(pieces.piece_to_id(token.piece) for token in h.tokens)
                given = Constraints(ids, complete=True)  # by its tokens: the text may be written with others
                future = translator._engine.submit(source_ids(pieces, text), scoring_options(options), given)
                if not h.hit_max_length:
                    (scored,) = future.result().hypotheses
                    seen += 1
                    assert (scored.ids, scored.complete) == (ids[:-1], True)
                    assert scored.score == pytest.approx(h.score, abs=1e-4)
                    assert scored.token_scores == pytest.approx([t.score for t in h.tokens], abs=1e-4)
    assert seen >= 30


def test_scores_of_any_text_equal_the_reference(translator: Translator, reference: Reference, pieces: Pieces) -> None:
    references = [*TEXTS[1:], ""]
    found = translator.score(TEXTS, references, DecodeOptions(token_scores=True, length_penalty=0.7))
    for text, known, scored in zip(TEXTS, references, found, strict=True):
        ids = (*pieces.encode(known), 0)
        expected = [
            reference.log_probs(source_ids(pieces, text), ids[:n], known=ids)[token] for n, token in enumerate(ids)
        ]
        assert [t.score for t in scored.tokens] == pytest.approx(expected, abs=2e-4)
        assert scored.score == pytest.approx(sum(expected) / len(ids) ** 0.7, abs=2e-4)
        assert scored.target_tokens == len(ids)
        assert not scored.hit_max_length
    best = translator.translate(TEXTS, DecodeOptions(beam_size=4, max_length=60), segmentation="none")
    worse = translator.score(TEXTS, references)
    assert sum(b.score > w.score for b, w in zip(best, worse, strict=True)) >= 7


def test_a_prefix_that_is_too_long_is_refused(translator: Translator) -> None:
    with pytest.raises(InvalidRequestError, match=r"text 0: target of .* tokens: at most 3 fit here"):
        translator.translate(["A man"], DecodeOptions(max_length=3), ["A man is standing"], segmentation="none")
    with pytest.raises(InvalidRequestError, match="at most 95 fit here"):
        translator.score(["A man"], [" ".join(TEXTS * 3)])


def test_texts_and_targets_pair_up(translator: Translator) -> None:
    with pytest.raises(InvalidRequestError, match="1 target_prefixes for 2 texts: give one for each"):
        translator.translate(["a", "b"], target_prefixes=["a"], segmentation="none")
    with pytest.raises(InvalidRequestError, match="0 references for 1 texts"):
        translator.score(["a"], [])
    with pytest.raises(InvalidRequestError, match="put a single text in a list"):
        translator.score(["a"], "a")
    with pytest.raises(InvalidRequestError, match="scored, not sampled"):
        translator.score(["a"], ["a"], DecodeOptions(sampling=Sampling()))
    assert translator.submit(" ", target=Target("a")).result().text == ""
    with pytest.raises(InvalidRequestError, match="not valid Unicode"):
        translator.submit("a", target=Target("\ud800"))


def test_a_level_of_an_earlier_version_is_refused_with_a_reason(
    lively_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Translator(lively_bundle, "h5", device="cpu", threads=1) as translator:
        engine = translator._engine
        assert isinstance(engine, Engine)
        sessions = engine.sessions
        files = {n: d for n, d in sessions.level.files.items() if "decoder_" not in n}
        monkeypatch.setattr(sessions, "level", sessions.level.model_copy(update={"files": files}))
        assert (
            translator.translate(["A man"], segmentation="none")[0].text
            == translator.translate(["A man"], segmentation="none")[0].text
        )
        with pytest.raises(FailedPreconditionError, match=r"without the sampling decoder.*compile the bundle again"):
            translator.translate(["A man"], DecodeOptions(sampling=Sampling()), segmentation="none")
        monkeypatch.setattr(sessions, "scores_wanted", False)
        with pytest.raises(FailedPreconditionError, match="compiled before target prefixes"):
            plan_job(sessions, [5, 0], DecodeOptions(), Constraints((4,)))


def test_options_that_shape_the_search_do_not_change_a_given_score(translator: Translator) -> None:
    plain = translator.score(TEXTS, TEXTS)
    odd = replace(DecodeOptions(), min_length=50, suppress_unknown=True, no_repeat_ngram_size=1, max_length=51)
    assert [t.score for t in translator.score(TEXTS, TEXTS, odd)] == [t.score for t in plain]

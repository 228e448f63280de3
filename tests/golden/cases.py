"""The golden suite's cases, and how an answer is written down and compared.

`bundle` is a small trained model, compiled once: 3 + 2 layers, width 64, uneven heads, one attention without heads; in
fp32, int8, and int8 with shortlists. `sources.en` and `references.de` were written for this project. `answers` has what
ONNX Runtime answered. Bundle and answers stay as they are: a change of the engine must give these answers again.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hmc.serving import DecodeOptions, Sampling, Translation

GOLDEN = Path(__file__).parent
BUNDLE = GOLDEN / "bundle"
LEVELS = ("full", "full-int8", "full-int8-shortlist")

Answer = list[list[Any]]
"""A translation: each hypothesis as [text, score, scores of its tokens, source token that each target token sees]."""


@dataclass(frozen=True)
class Case:
    """Options under which the first `count` sources are translated, or scored against the references."""

    name: str
    options: DecodeOptions
    count: int = 100
    prefixes: tuple[str, ...] = ()
    """Beginnings of translations, in turn. Empty: none is given."""
    score: bool = False
    """Whether the references are scored; else the sources are translated."""
    arguments: tuple[str, ...] | None = field(default=None)
    """The same options for `hmc translate` or `hmc score`. None: the case is not asked there."""


HEADS = ("cross.1.0", "cross.1.3")

CASES = (
    Case("greedy", DecodeOptions(beam_size=1), 500, arguments=("--beam", "1")),
    Case("beam-4", DecodeOptions(), 500, arguments=("--beam", "4")),
    Case("beam-16", DecodeOptions(beam_size=16), 50),
    Case("n-best", DecodeOptions(n_best=4), arguments=("--n-best", "4")),
    Case("lengths", DecodeOptions(length_penalty=0.6, patience=2.0, min_length=8, max_length=20)),
    Case("sampling", DecodeOptions(n_best=2, sampling=Sampling(temperature=0.7, seed=7))),
    Case("nucleus", DecodeOptions(sampling=Sampling(top_k=20, top_p=0.9, seed=7))),
    Case("prefix", DecodeOptions(), prefixes=("Ein", "Der alte", "Zwei Hunde", "Bitte")),
    Case("greedy-prefix", DecodeOptions(beam_size=1), prefixes=("Ein", "Der alte", "Zwei Hunde", "Bitte")),
    Case(
        "bans",
        DecodeOptions(
            suppress_unknown=True, suppressed_tokens=("▁Ein", "▁der"), suppressed_phrases=("Ein Mann", "die")
        ),
        arguments=(
            "--suppress-unknown", "--suppress-token", "▁Ein", "--suppress-token", "▁der",
            "--suppress-phrase", "Ein Mann", "--suppress-phrase", "die",
        ),
    ),
    Case(
        "n-grams",
        DecodeOptions(no_repeat_ngram_size=2, repetition_penalty=1.2),
        arguments=("--no-repeat-ngram", "2", "--repetition-penalty", "1.2"),
    ),
    Case("coverage", DecodeOptions(coverage_penalty=0.2), arguments=("--coverage-penalty", "0.2")),
    Case("alignment", DecodeOptions(token_scores=True, alignment=True)),
    Case("alignment-heads", DecodeOptions(beam_size=1, token_scores=True, alignment=True, attention_heads=HEADS)),
    Case("score", DecodeOptions(token_scores=True), score=True, arguments=()),
)  # fmt: skip


@dataclass(frozen=True)
class Tolerance:
    """How far answers may be from the golden ones."""

    differing: float
    """Share of the texts whose translation may be another one: two translations of almost the same score."""
    score: float
    """Largest difference of the score of an equal translation."""
    token: float
    """Largest difference of a token's log-probability."""


TOLERANCES = {
    "full": Tolerance(differing=0.01, score=1e-4, token=1e-3),
    "full-int8": Tolerance(differing=0.02, score=0.05, token=0.5),
    "full-int8-shortlist": Tolerance(differing=0.02, score=0.05, token=0.5),
}
"""fp32 sums in another order; in int8 such a difference also moves single activations by one step."""


def sources(case: Case) -> list[str]:
    """The texts of a case."""
    return (GOLDEN / "sources.en").read_text(encoding="utf-8").splitlines()[: case.count]


def references(case: Case) -> list[str]:
    """Given translations of its texts."""
    return (GOLDEN / "references.de").read_text(encoding="utf-8").splitlines()[: case.count]


def prefixes(case: Case) -> list[str]:
    """How each translation has to begin."""
    if not case.prefixes:
        return []
    return [case.prefixes[index % len(case.prefixes)] for index in range(case.count)]


def written(translation: Translation) -> Answer:
    """What is kept of an answer."""
    hypotheses = []
    for hypothesis in translation.hypotheses:
        scores = [round(token.score, 4) for token in hypothesis.tokens if token.score is not None]
        seen = [source for source, _ in hypothesis.alignment]
        hypotheses.append([hypothesis.text, round(hypothesis.score, 5), scores, seen])
    return hypotheses


def answers_path(level: str, case: Case) -> Path:
    """The file of the golden answers."""
    return GOLDEN / "answers" / f"{level}.{case.name}.jsonl.gz"


def golden_answers(level: str, case: Case) -> list[Answer]:
    """The golden answers of a case."""
    text = gzip.decompress(answers_path(level, case).read_bytes()).decode("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def problems(level: str, case: Case, answers: Sequence[Answer]) -> list[str]:
    """Compares answers with the golden ones. Returns a line for each that is too far from its golden answer, and one
    where too many translations differ."""
    tolerance = TOLERANCES[level]
    golden = golden_answers(level, case)
    assert len(answers) == len(golden), f"{len(answers)} answers for {len(golden)} texts"
    found = []
    differing = 0
    for number, (answer, expected) in enumerate(zip(answers, golden, strict=True)):
        if [hypothesis[0] for hypothesis in answer] != [hypothesis[0] for hypothesis in expected]:
            differing += 1
            continue
        for (text, score, tokens, seen), (_, golden_score, golden_tokens, golden_seen) in zip(
            answer, expected, strict=True
        ):
            if not abs(score - golden_score) <= tolerance.score:
                found.append(f"{number}: {text!r} has the score {score}, not {golden_score}")
            if len(tokens) != len(golden_tokens):
                found.append(f"{number}: {text!r} has {len(tokens)} scores of tokens, not {len(golden_tokens)}")
            elif any(not abs(one - other) <= tolerance.token for one, other in zip(tokens, golden_tokens, strict=True)):
                found.append(f"{number}: {text!r} has other scores of tokens")
            changed = sum(one != other for one, other in zip(seen, golden_seen, strict=False))
            if len(seen) != len(golden_seen) or changed > max(1, 0.1 * len(seen)):
                found.append(f"{number}: {text!r} is aligned otherwise")
    if differing > tolerance.differing * len(golden):
        found.append(f"{differing} of {len(golden)} translations differ")
    return found

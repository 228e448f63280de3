"""What a report says beside its totals: lengths of sentences, and the sentences that suffer most."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sacrebleu.metrics import CHRF

from hmc.artifact.significance import bleu, bleu_statistics, tokenizer_of
from hmc.benchmark.measure.latency import LatencyResult, median_of
from hmc.benchmark.report.results import LevelReport, PeerReport, Report

BUCKETS = 4
"""Buckets of sentence lengths, as equal in size as the lengths allow."""
WORST = 8
"""Sentences that are shown."""
MOST_SCORED = 4000
"""Sentences that are looked at to find them; chrF takes about 0.2 ms each."""

System = LevelReport | PeerReport


@dataclass(frozen=True)
class Bucket:
    """The sentences of some lengths."""

    low: int
    high: int
    """Source tokens, both ends included."""
    sentences: int
    bleu: dict[str, float]
    """System → BLEU; empty without references."""
    p50_ms: dict[str, float]
    """System → median time of a request of one sentence, of those that were timed; empty if none was."""


@dataclass(frozen=True)
class Worst:
    """A sentence that a level translates much worse than the reference level does."""

    source: str
    reference: str
    level: str
    """The level that loses most."""
    lost: float
    """chrF that it loses."""
    translations: dict[str, str]
    """System → translation."""


def buckets(report: Report) -> list[Bucket]:
    """Quality at the headline beam and times at batch 1, by length. Empty if no length is known."""
    lengths = [sentence.tokens or 0 for sentence in report.sentences]
    known = sorted(length for length in lengths if length)
    if not known:
        return []
    edges = sorted({known[len(known) * n // BUCKETS - 1] for n in range(1, BUCKETS + 1)})
    lows = [known[0], *(edge + 1 for edge in edges[:-1])]
    return [_bucket(report, lengths, low, high) for low, high in zip(lows, edges, strict=True)]


def _bucket(report: Report, lengths: Sequence[int], low: int, high: int) -> Bucket:
    inside = [number for number, length in enumerate(lengths) if low <= length <= high]
    filled = [number for number, sentence in enumerate(report.sentences) if sentence.source.strip()]
    timed = {number: place for place, number in enumerate(filled)}
    scores = {}
    times = {}
    tokenizer = tokenizer_of([sentence.reference or "" for sentence in report.sentences])
    for system in report.systems:
        if system.quality:
            texts = [system.translations[number] for number in inside]
            references = [report.sentences[number].reference or "" for number in inside]
            scores[system.name] = float(bleu(bleu_statistics(texts, references, tokenizer).sum(axis=0)))
        if (at := _alone(report, system)) is not None:
            table = np.asarray(at.samples_ms)
            columns = [timed[number] for number in inside if timed.get(number, table.shape[1]) < table.shape[1]]
            if columns:
                times[system.name] = median_of(table[:, columns].ravel().tolist())
    return Bucket(low, high, len(inside), scores, times)


def _alone(report: Report, system: System) -> LatencyResult | None:
    beam = report.conditions.headline.beam
    return next((at for at in system.latency if (at.batch, at.beam) == (1, beam)), None)


def worst(report: Report) -> list[Worst]:
    """The sentences in which a level loses most chrF against the reference level, worst first. Empty without
    references."""
    name = report.conditions.quality_reference
    base = next((level for level in report.levels if level.name == name), None)
    others = [level for level in report.levels if level.name != name and level.translations]
    if base is None or not base.translations or not others:
        return []
    metric = CHRF()
    losses = list[Worst]()
    for number, sentence in enumerate(report.sentences[:MOST_SCORED]):
        reference = sentence.reference or ""

        def chrf(level: LevelReport, number: int = number, reference: str = reference) -> float:
            return float(metric.sentence_score(level.translations[number], [reference]).score)

        changed = [level for level in others if level.translations[number] != base.translations[number]]
        if not changed:
            continue
        score, level = min(((chrf(level), level) for level in changed), key=lambda pair: pair[0])
        lost = chrf(base) - score
        texts = {system.name: system.translations[number] for system in report.systems}
        losses.append(Worst(sentence.source, reference, level.name, lost, texts))
    return sorted((each for each in losses if each.lost > 0), key=lambda each: -each.lost)[:WORST]


def differing(text: str, other: str) -> list[tuple[str, bool]]:
    """The words of a text in runs, each with whether it differs from the words of the other text."""
    words = text.split()
    others = other.split()
    runs = []
    for kind, start, end, *_ in difflib.SequenceMatcher(None, words, others, autojunk=False).get_opcodes():
        if end > start:
            runs.append((" ".join(words[start:end]), kind != "equal"))
    return runs

"""How soon a translation begins: the time until its first piece of text is certain."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from hmc.benchmark.measure.latency import median_of
from hmc.benchmark.measure.validity import percentile
from hmc.serving import DecodeOptions, Translator

SENTENCES = 64
"""Sentences that are timed; as many as p90 needs."""


@dataclass(frozen=True)
class FirstToken:
    """Sentences translated one by one, as `translate_tokens` of the service does."""

    beam: int
    requests: int
    p50_ms: float
    """Until the first piece of text that no later step can change."""
    p90_ms: float | None
    whole_p50_ms: float
    """Until the whole translation."""


def measure_first_token(translator: Translator, sentences: Sequence[str], beam: int) -> FirstToken:
    """Times the first `SENTENCES` sentences. A translation without a piece before its end counts in full."""
    options, firsts, wholes = DecodeOptions(beam_size=beam), list[float](), list[float]()
    for sentence in sentences[:SENTENCES]:
        start, first = time.perf_counter(), None
        for _ in translator.stream(sentence, options):
            first = first or time.perf_counter() - start
        wholes.append(1000.0 * (time.perf_counter() - start))
        firsts.append(1000.0 * first if first else wholes[-1])
    return FirstToken(beam, len(firsts), median_of(firsts), percentile(firsts, 90), median_of(wholes))

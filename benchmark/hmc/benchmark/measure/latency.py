"""Request latency of levels, or of any models that translate. One process measures all of them in each round. And how
soon a translation begins: the time until its first piece of text is certain."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import median
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from hmc.artifact.errors import InvalidRequestError
from hmc.benchmark.measure.quality import Progress, Translates, silent
from hmc.benchmark.measure.validity import Interval, Steadiness, interval, percentile, steadiness
from hmc.serving import DecodeOptions, Translation, Translator

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
    options = DecodeOptions(beam_size=beam)
    firsts = list[float]()
    wholes = list[float]()
    for sentence in sentences[:SENTENCES]:
        start = time.perf_counter()
        first = None
        for _ in translator.stream(sentence, options):
            first = first or time.perf_counter() - start
        wholes.append(1000.0 * (time.perf_counter() - start))
        firsts.append(1000.0 * first if first else wholes[-1])
    return FirstToken(beam, len(firsts), median_of(firsts), percentile(firsts, 90), median_of(wholes))


T = TypeVar("T")
TURNS = 4
"""Turns that each level has in a round, of a part of the requests each. So other work on the machine, which comes and
goes, meets all levels alike."""
SETTLE_S = 0.02
"""Pause between two levels, in which the idle threads of the first stop spinning."""


@dataclass(frozen=True)
class RequestSize:
    """A batch size and a beam size."""

    batch: int
    """Sentences of a request."""
    beam: int

    def __str__(self) -> str:
        return f"batch {self.batch}, beam {self.beam}"


@dataclass(frozen=True)
class LatencyResult:
    """The latency of one level at one setting, over all rounds."""

    level: str
    batch: int
    beam: int
    requests: int
    p50_ms: float
    """Percentiles of the wall time of a request, nearest rank. Those for which there are too few requests
    (`requests_needed`) are None."""
    p95_ms: float | None
    p99_ms: float | None
    sentences_per_s: float
    tokens_per_s: float
    """Target tokens, end of sentence included."""
    ratio: float
    """Median over the rounds of this level's time over the reference level's; below 1 is faster."""
    p90_ms: float | None = None
    p50_interval: Interval | None = None
    """95 % intervals over the rounds; None with too few of them (`FEWEST_ROUNDS`)."""
    rate_interval: Interval | None = None
    """Of sentences_per_s."""
    ratio_interval: Interval | None = None
    steadiness: Steadiness = field(default_factory=Steadiness)
    samples_ms: tuple[tuple[float, ...], ...] = ()
    """`[R, N]`: the time of every request in every round, to 0.1 µs."""


class Clock(Protocol):
    """The functions of the module `time` that measurements use."""

    def perf_counter(self) -> float:
        """Seconds."""

    def sleep(self, seconds: float, /) -> None:
        """Waits."""


@runtime_checkable
class TimesItself(Protocol):
    """A model in another process: it reports its own time, so that the time of messages does not count."""

    def timed(self, texts: Sequence[str], options: DecodeOptions) -> tuple[float, list[Translation]]:
        """Seconds, and the translations in the order of the texts."""


@dataclass
class _Round:
    seconds: list[float]
    sentences: int = 0
    tokens: int = 0

    @property
    def total_s(self) -> float:
        return sum(self.seconds)

    def add(self, turn: _Round) -> None:
        self.seconds += turn.seconds
        self.sentences += turn.sentences
        self.tokens += turn.tokens


def requests_of(sentences: Sequence[str], batch: int) -> list[list[str]]:
    """Splits sentences into requests of `batch` sentences, in order. A last, smaller request is left out.

    Raises InvalidRequestError if the sentences do not fill one request.
    """
    if batch > len(sentences):
        raise InvalidRequestError(f"batch {batch}: only {len(sentences)} sentences can be timed")
    return [list(sentences[start : start + batch]) for start in range(0, len(sentences) // batch * batch, batch)]


def rotated(names: Sequence[T], turn: int) -> list[T]:
    """The order of the levels in round `turn`. In each round another level is the first."""
    shift = turn % len(names)
    return [*names[shift:], *names[:shift]]


def measure_latency(
    translators: Mapping[str, Translates | TimesItself],
    sentences: Sequence[str],
    settings: Sequence[RequestSize],
    *,
    rounds: int,
    reference: str,
    progress: Progress = silent,
    clock: Clock | None = None,
) -> list[LatencyResult]:
    """Times every level at every setting. In each round all levels translate the same sentences, one request at a time,
    in `TURNS` turns.

    Before the first round of a setting, each level translates one request that is not timed. reference: the level that
    ratios are computed against. clock: the machine's by default.
    """
    results = []
    clock = clock or time
    for setting in settings:
        requests = requests_of(sentences, setting.batch)
        for translator in translators.values():
            _run(translator, requests[:1], setting, clock)
        seen: dict[str, list[_Round]] = {name: [] for name in translators}
        for turn in range(rounds):
            progress(f"{setting}: round {turn + 1} of {rounds}")
            for rounds_of in seen.values():
                rounds_of.append(_Round([]))
            length = -(-len(requests) // TURNS)
            for number, start in enumerate(range(0, len(requests), length)):
                for name in rotated(list(translators), turn + number):
                    clock.sleep(SETTLE_S)
                    done = _run(translators[name], requests[start : start + length], setting, clock)
                    seen[name][-1].add(done)
        results += [_summary(name, setting, seen[name], seen[reference]) for name in translators]
    return results


def _run(
    translator: Translates | TimesItself, requests: Sequence[Sequence[str]], setting: RequestSize, clock: Clock
) -> _Round:
    options = DecodeOptions(beam_size=setting.beam)
    done = _Round([])
    for request in requests:
        if isinstance(translator, TimesItself):
            seconds, translations = translator.timed(request, options)
        else:
            start = clock.perf_counter()
            translations = translator.translate(request, options, segmentation="none")
            seconds = clock.perf_counter() - start
        done.seconds.append(seconds)
        done.sentences += len(translations)
        done.tokens += sum(translation.target_tokens for translation in translations)
    return done


def _summary(name: str, setting: RequestSize, rounds: Sequence[_Round], reference: Sequence[_Round]) -> LatencyResult:
    times: list[list[float]] = [(1000.0 * np.array(r.seconds)).tolist() for r in rounds]
    pooled = list(chain.from_iterable(times))
    total = sum(r.total_s for r in rounds)
    ratios = [r.total_s / other.total_s for r, other in zip(rounds, reference, strict=True)]
    p50 = median_of(pooled)
    rate = sum(r.sentences for r in rounds) / total
    ratio = median(ratios)
    return LatencyResult(
        level=name,
        batch=setting.batch,
        beam=setting.beam,
        requests=len(pooled),
        p50_ms=p50,
        p90_ms=percentile(pooled, 90),
        p95_ms=percentile(pooled, 95),
        p99_ms=percentile(pooled, 99),
        sentences_per_s=rate,
        tokens_per_s=sum(r.tokens for r in rounds) / total,
        ratio=ratio,
        p50_interval=interval(p50, list(map(median_of, times))),
        rate_interval=interval(rate, [r.sentences / r.total_s for r in rounds]),
        ratio_interval=interval(ratio, ratios),
        steadiness=steadiness(times),
        samples_ms=tuple(tuple(map(_rounded, of_round)) for of_round in times),
    )


def _rounded(ms: float) -> float:
    return round(ms, 4)


def median_of(times: Sequence[float]) -> float:
    """The median by nearest rank."""
    return float(np.percentile(times, 50, method="inverted_cdf"))


def time_requests(
    translators: Mapping[str, Translates],
    sentences: Sequence[str],
    *,
    batch: int,
    options: DecodeOptions,
    rounds: int,
    progress: Progress = silent,
) -> dict[str, float]:
    """Returns the milliseconds that each model takes for one request of `batch` sentences.

    options: they should fix the length of translations, so that models which translate differently take as many steps.
    Before the first round each model translates one request that is not timed. Of each request the fastest round
    counts: other work on the machine can only make a request slower. Rounds are short, so that a model meets a quiet
    moment in one of them.
    """
    requests = requests_of(sentences, batch)
    for translator in translators.values():
        translator.translate(requests[0], options, segmentation="none")
    names = list(translators)
    seconds = np.zeros((rounds, len(names), len(requests)))
    for turn in range(rounds):
        progress(f"round {turn + 1} of {rounds}")
        for name in rotated(names, turn):
            time.sleep(SETTLE_S)
            for number, request in enumerate(requests):
                start = time.perf_counter()
                translators[name].translate(request, options, segmentation="none")
                seconds[turn, names.index(name), number] = time.perf_counter() - start
    return {name: float(ms) for name, ms in zip(names, best_times(seconds) * 1000.0, strict=True)}


def best_times(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """`[rounds, models, requests]` → `[models]`: the mean over the requests of their fastest round."""
    means: npt.NDArray[np.float64] = seconds.min(0).mean(-1)
    return means

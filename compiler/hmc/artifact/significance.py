"""How sure the difference between two systems is: a p-value from sacreBLEU's paired test, and an interval.

Both are computed from *statistics*: one row of numbers per sentence, such that the score of a test set depends only on
the sum of its rows. For BLEU a row holds two lengths and the n-gram counts; for a loss it holds nats and tokens.

* The p-value equals that of `sacrebleu.significance.PairedTest` with test `ar`: paired approximate randomisation
  (Riezler and Maxwell 2005). `sacrebleu REF -i BASELINE SYSTEM -m bleu --paired-ar` prints it for the same files, with
  `-tok zh` or `-tok char` where `tokenizer_of` gives these.
* The interval is a percentile interval of the difference over paired bootstrap resamples (Koehn 2004). It is computed
  here because sacreBLEU gives an interval for each system, and none for their difference.

The module is in `hmc.artifact` because its numbers are fields of the manifest (`hmc.artifact.bundle.manifest.Quality`),
and because the two packages that compute them, `hmc.benchmark` and `hmc.training`, have only this one in common.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sacrebleu.metrics import BLEU
from sacrebleu.utils import my_log

from hmc.artifact.errors import InvalidRequestError

TEST = "sacrebleu paired-ar"
"""The test's name, as results record it."""
TRIALS = 10_000
RESAMPLES = 1000
SEED = 12345
"""sacreBLEU's defaults: trials of the randomisation test, bootstrap resamples, and the seed of both."""
TRIALS_AT_ONCE = 500
"""Trials that are summed at once: 4 KB a sentence."""
SEED_VARIABLE = "SACREBLEU_SEED"
"""Environment variable from which sacreBLEU reads its seed."""
CONFIDENCE = 0.95
NGRAMS = 4
HAN = re.compile("[\u3400-\u9fff\uf900-\ufaff]")
WITHOUT_SPACES = re.compile("[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff]")
"""Thai, Lao, Tibetan, Burmese, Khmer and kana: scripts that put no space between words."""
UNSPACED = 0.25
"""The share of such characters among all letters from which a text counts as one without spaces."""

Floats = npt.NDArray[np.float64]
Statistics = npt.NDArray[Any]
"""`[N, K]`: one row per sentence."""
ScoreOf = Callable[[Statistics], Floats]
"""Sums of statistics `[…, K]` → scores `[…]`."""


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval: the 2.5th and the 97.5th percentile over the resamples."""

    value: float
    low: float
    high: float
    p_value: float | None = None
    """Of a difference: see `p_value`. None for a score."""

    def to_json(self) -> dict[str, float | None]:
        """The fields as a dictionary."""
        return asdict(self)


def check_seed(seed: int) -> int:
    """Returns `seed`. Raises InvalidRequestError unless sacreBLEU can repeat a test with it."""
    if not 1 <= seed < 2**32:
        reason = "sacreBLEU takes 0 as no seed, so its test could not be repeated; " if seed == 0 else ""
        raise InvalidRequestError(f"seed {seed}: {reason}choose 1 to {2**32 - 1}")
    return seed


def default_seed() -> int:
    """The seed in the environment variable SACREBLEU_SEED, or 12345 where it is not set.

    Raises InvalidRequestError for a value that is not a number from 1, because the test could not be repeated.
    """
    text = os.environ.get(SEED_VARIABLE, "").strip() or str(SEED)
    try:
        return check_seed(int(text))
    except ValueError as error:
        raise InvalidRequestError(
            f"environment variable {SEED_VARIABLE} is {text!r}; set a whole number, or unset it for {SEED}"
        ) from error


class Resampler:
    """Bootstrap resamples: draws of N sentences with replacement. The same seed draws the same for every system."""

    def __init__(self, sentences: int, resamples: int = RESAMPLES, seed: int = SEED) -> None:
        drawn = np.random.default_rng(seed).choice(sentences, size=(resamples, sentences), replace=True)
        self.weights: Floats = np.stack([np.bincount(row, minlength=sentences) for row in drawn]).astype(np.float64)
        """`[resamples, N]`: how often each sentence was drawn."""

    def totals(self, statistics: Statistics) -> Floats:
        """Statistics `[N, …]` → their sum over each resample, `[resamples, …]`."""
        return np.tensordot(self.weights, statistics.astype(np.float64), axes=1)


def interval(resampled: Floats, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Both ends of the percentile interval of resampled values: at 0.95 the 2.5th and the 97.5th percentile."""
    outside = 100 - 100 * confidence
    low, high = np.percentile(resampled, [outside / 2, 100 - outside / 2])
    return float(low), float(high)


def p_value(
    system: Statistics, baseline: Statistics, score: ScoreOf, *, trials: int = TRIALS, seed: int = SEED
) -> float:
    """Two-sided p-value of the difference in score between two systems on the same N sentences.

    system, baseline: `[N, K]`. The value is sacreBLEU's, but never below 2^(1 - n), n the number of sentences whose
    statistics differ: of the 2^n equally likely ways to swap them, two give at least the difference that was observed.
    sacreBLEU counts only larger differences, so it calls a change in one sentence highly significant. From n = 15 on
    the bound is below sacreBLEU's least p-value at 10 000 trials. Without any difference the p-value is 1.

    Raises InvalidRequestError for a seed that sacreBLEU cannot repeat, ValueError for different numbers of sentences.
    """
    if len(system) != len(baseline):
        raise ValueError(f"{len(system)} and {len(baseline)} sentences: a paired test needs the same sentences")
    # Matrices of float64 are multiplied much faster than those of integers, and sums of counts are as exact.
    system = np.asarray(system, np.float64)
    baseline = np.asarray(baseline, np.float64)
    differing = int((system != baseline).any(axis=1).sum())
    least = min(1.0, 2.0 ** (1 - differing))
    if least == 1.0:
        return 1.0
    # As sacreBLEU draws and sums; it scores one trial at a time, which takes twice as long.
    swapped = np.random.default_rng(check_seed(seed)).integers(2, size=(trials, len(system)), dtype=bool)
    observed = abs(float(score(baseline.sum(axis=0))) - float(score(system.sum(axis=0))))
    larger = 0
    for start in range(0, trials, TRIALS_AT_ONCE):
        some = swapped[start : start + TRIALS_AT_ONCE]
        first = some @ baseline + ~some @ system
        second = ~some @ baseline + some @ system
        larger += int((np.abs(score(first) - score(second)) > observed).sum())
    return max(least, (larger + 1) / (trials + 1))


def difference(
    system: Statistics,
    baseline: Statistics,
    score: ScoreOf,
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """Score of a system minus the score of the baseline on the same N sentences, with its interval and without a
    p-value.

    system, baseline: `[N, K]`. Raises ValueError for different numbers of sentences.
    """
    if len(system) != len(baseline):
        raise ValueError(f"{len(system)} and {len(baseline)} sentences: a paired interval needs the same sentences")
    resampler = Resampler(len(system), resamples, seed)
    resampled = score(resampler.totals(system)) - score(resampler.totals(baseline))
    value = float(score(system.sum(axis=0)) - score(baseline.sum(axis=0)))
    return Estimate(value, *interval(resampled, confidence))


def tokenizer_of(references: Sequence[str]) -> str:
    """sacreBLEU's name of the tokenizer that BLEU takes for such a test set: `zh` for Chinese; `char` for Japanese,
    Thai, Lao, Tibetan, Khmer and Burmese; else `13a`, which takes a sentence without spaces as one word."""
    text = "".join(references)
    letters = UNSPACED * max(1, sum(map(str.isalpha, text)))
    han = len(HAN.findall(text))
    others = len(WITHOUT_SPACES.findall(text))
    if han + others < letters:
        return "13a"
    return "char" if others > han / 20 else "zh"  # Chinese may quote a little Japanese


def bleu_statistics(
    hypotheses: Sequence[str], references: Sequence[str], tokenizer: str | None = None
) -> npt.NDArray[np.int64]:
    """Statistics of BLEU, `[N, 10]`: hypothesis length, reference length, 4 counts of matches, 4 counts of n-grams.

    tokenizer: None takes the references' tokenizer (see `tokenizer_of`). For a part of a test set, give the tokenizer
    of the whole set. Raises ValueError for different numbers of hypotheses and references.
    """
    name = tokenizer or tokenizer_of(references)
    metric = BLEU(tokenize=name, effective_order=True)  # changes the score of a sentence, not its counts
    scores = [metric.sentence_score(h, [r]) for h, r in zip(hypotheses, references, strict=True)]
    rows = [[s.sys_len, s.ref_len, *s.counts, *s.totals] for s in scores]
    return np.array(rows, np.int64).reshape(-1, 2 + 2 * NGRAMS)


def bleu(totals: Statistics) -> Floats:
    """Corpus BLEU, 0 to 100, of summed statistics `[…, 10]`, with sacreBLEU's default smoothing.

    As `BLEU.compute_bleu`, to the last bit, for all rows at once: a significance test scores twenty thousand. So
    logarithms, their sum and powers of e are Python's, as there; NumPy's may differ in the last bit.
    """
    flat = totals.reshape(-1, totals.shape[-1]).astype(np.float64)
    length = flat[:, 0]
    reference = flat[:, 1]
    matches = flat[:, 2 : 2 + NGRAMS]
    ngrams = flat[:, 2 + NGRAMS :]
    counted = np.logical_and.accumulate(ngrams > 0, axis=1)  # hypotheses may be too short for higher orders
    halved = 2.0 ** np.cumsum((matches == 0) & counted, axis=1)  # at each order without a match, once more
    precisions = (
        100.0 * np.where(matches == 0, 1, matches) / np.where(counted, np.where(matches == 0, halved, 1) * ngrams, 1)
    )
    logs = np.where(counted, _each(math.log, precisions.ravel()).reshape(precisions.shape), my_log(0.0))
    penalty = np.where(length < reference, 1 - reference / np.maximum(length, 1), 0.0)  # no words match no n-gram
    means = _each(sum, logs) / NGRAMS
    values = np.where(matches.any(axis=1), _each(math.exp, penalty) * _each(math.exp, means), 0.0)
    return values.reshape(totals.shape[:-1])


def _each(function: Callable[[Any], float], values: Floats) -> Floats:
    """A function of Python for each item of an array: its numbers, or its rows."""
    return np.array(list(map(function, values.tolist())), np.float64)


def bleu_signature(references: Sequence[str]) -> str:
    """sacreBLEU's signature of `bleu` with these references, one for each sentence."""
    metric = BLEU(tokenize=tokenizer_of(references))
    metric.corpus_score(["a"], [["a"]])  # the signature names the number of references, known only after a score
    return str(metric.get_signature())

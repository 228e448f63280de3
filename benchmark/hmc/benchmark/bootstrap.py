"""Paired bootstrap resampling of a BLEU difference (Koehn 2004, Statistical Significance Tests for MT Evaluation).

sacrebleu's own `PairedTest` gives an interval for each system but none for their difference, so the resampling is
done here; every resample is scored by sacrebleu, from the sufficient statistics of its sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sacrebleu.metrics import BLEU

RESAMPLES, SEED = 1000, 12345
"""sacrebleu's defaults, so that both draw the same resamples."""
NGRAMS = 4

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Difference:
    """BLEU of a system minus BLEU of the baseline, on the same sentences."""

    delta: float
    ci_low: float
    """Ends of the interval, percentiles of the difference over the resamples: at 95 % the 2.5th and the 97.5th."""
    ci_high: float
    p_value: float
    """Twice the share of resamples whose difference is zero or of the other sign, at most 1; 1 for no difference."""


def bleu_counts(hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
    """What BLEU is computed from, a row a sentence: `[N, 10]` = hypothesis and reference length, matches, n-grams."""
    metric = BLEU(effective_order=True)  # concerns the score of a sentence, not its counts
    scores = [metric.sentence_score(h, [r]) for h, r in zip(hypotheses, references, strict=True)]
    return np.array([[s.sys_len, s.ref_len, *s.counts, *s.totals] for s in scores], np.int64)


def bleu_of_counts(total: Counts) -> float:
    """Corpus BLEU, 0 to 100, of summed counts `[10]`, with sacreBLEU's default smoothing."""
    sys_len, ref_len, *rest = total.tolist()
    return float(BLEU.compute_bleu(rest[:NGRAMS], rest[NGRAMS:], sys_len, ref_len, smooth_method="exp").score)


def resampled_bleu(counts: Counts, resamples: int = RESAMPLES, seed: int = SEED) -> npt.NDArray[np.float64]:
    """BLEU of draws of N sentences with replacement, `[resamples]`; a seed draws the same sentences for any system."""
    drawn = np.random.default_rng(seed).choice(len(counts), size=(resamples, len(counts)), replace=True)
    return np.array([bleu_of_counts(counts[rows].sum(axis=0)) for rows in drawn])


def paired_bootstrap(
    system: Counts, baseline: Counts, resamples: int = RESAMPLES, seed: int = SEED, confidence: float = 0.95
) -> Difference:
    """How sure the difference between two systems is, from their counts on the same sentences."""
    if len(system) != len(baseline):
        raise ValueError(f"{len(system)} and {len(baseline)} sentences: a paired test needs the same ones")
    delta = bleu_of_counts(system.sum(axis=0)) - bleu_of_counts(baseline.sum(axis=0))
    resampled = resampled_bleu(system, resamples, seed) - resampled_bleu(baseline, resamples, seed)
    return difference(delta, resampled, confidence)


def difference(delta: float, resampled: npt.NDArray[np.float64], confidence: float = 0.95) -> Difference:
    """Interval and p-value of an observed difference from its resampled values."""
    outside = 100 - 100 * confidence
    low, high = np.percentile(resampled, [outside / 2, 100 - outside / 2])
    against = np.mean(resampled <= 0) if delta > 0 else np.mean(resampled >= 0)
    p_value = min(1.0, 2 * float(against)) if delta else 1.0
    return Difference(delta, float(low), float(high), p_value)

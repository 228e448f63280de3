"""Bootstrap over sentences (Koehn 2004): intervals of a loss or a BLEU score, and of paired differences.

A score is a function of statistics summed over sentences, so a resample is a weighted sum. sacreBLEU scores every
resample; its own paired test gives no interval of the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from sacrebleu.metrics import BLEU

RESAMPLES, SEED = 1000, 12345
"""sacreBLEU's defaults."""
NGRAMS = 4

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval: the 2.5th and 97.5th percentile over the resamples."""

    value: float
    low: float
    high: float
    p_value: float | None = None
    """Of a difference: twice the share of resamples at zero or of the other sign, at most 1; 1 for no difference."""

    def to_json(self) -> dict[str, float | None]:
        """Plain values."""
        return asdict(self)


class Resampler:
    """Draws of N sentences with replacement; a seed draws the same sentences for every system."""

    def __init__(self, sentences: int, resamples: int = RESAMPLES, seed: int = SEED) -> None:
        drawn = np.random.default_rng(seed).choice(sentences, size=(resamples, sentences), replace=True)
        self.weights: Floats = np.stack([np.bincount(row, minlength=sentences) for row in drawn]).astype(np.float64)
        """`[resamples, N]`: how often each sentence was drawn."""

    def totals(self, statistics: npt.NDArray[np.generic]) -> Floats:
        """Statistics `[N, …]` → sums `[resamples, …]`."""
        return np.tensordot(self.weights, statistics.astype(np.float64), axes=1)


def estimate(value: float, resampled: Floats) -> Estimate:
    """Interval of a score."""
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Estimate(value, float(low), float(high))


def difference(value: float, resampled: Floats) -> Estimate:
    """Interval and p-value of a difference, from its resampled values."""
    low, high = np.percentile(resampled, [2.5, 97.5])
    against = float(np.mean(resampled <= 0 if value > 0 else resampled >= 0))
    return Estimate(value, float(low), float(high), min(1.0, 2 * against) if value else 1.0)


def bleu_statistics(systems: Sequence[Sequence[str]], references: Sequence[str]) -> npt.NDArray[np.int64]:
    """`[M, N, 10]` of M systems' N translations: hypothesis and reference length, n-gram matches, n-grams."""
    metric = BLEU(effective_order=True)  # concerns a sentence's score, not its counts
    found = np.zeros((len(systems), len(references), 2 + 2 * NGRAMS), np.int64)
    for number, reference in enumerate(references):
        known: dict[str, list[int]] = {}
        for system, hypotheses in enumerate(systems):
            text = hypotheses[number]
            if text not in known:
                score = metric.sentence_score(text, [reference])
                known[text] = [score.sys_len, score.ref_len, *score.counts, *score.totals]
            found[system, number] = known[text]
    return found


def bleu(totals: npt.NDArray[np.generic]) -> Floats:
    """Corpus BLEU, 0 to 100, of summed statistics `[…, 10]`, with sacreBLEU's default smoothing."""
    flat = totals.reshape(-1, totals.shape[-1]).astype(np.int64).tolist()
    values = [
        BLEU.compute_bleu(row[2 : 2 + NGRAMS], row[2 + NGRAMS :], row[0], row[1], smooth_method="exp").score
        for row in flat
    ]
    return np.array(values, np.float64).reshape(totals.shape[:-1])


def bleu_signature() -> str:
    """sacreBLEU's signature of `bleu` with one reference."""
    metric = BLEU()
    metric.corpus_score(["a"], [["a"]])  # the signature names the number of references, known only after a score
    return str(metric.get_signature())

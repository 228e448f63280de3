"""Correlation of the effects of heads on two texts (Michel et al. 2019, section 3.4).

Intervals and p-values of the coefficients are computed without tables of distributions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.significance import Estimate
from hmc.training.analysis.common.measure import Settings
from hmc.training.analysis.common.records import CorrelationData, HeadOnTwoTexts
from hmc.training.analysis.common.result import Result
from hmc.training.analysis.common.subject import Progress, Subject, Text, silent
from hmc.training.analysis.common.summary import Summary, interval, probability
from hmc.training.analysis.masking import ablate
from hmc.training.analysis.masking.importance import sample_values

COMMAND = "correlate"
Effect = Literal["loss", "bleu", "importance"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)
"""Effect of a head: Δ loss or Δ BLEU when it is masked alone, or its I_h."""
Floats = npt.NDArray[np.float64]
PERMUTATIONS = 9999
"""Permutations of the test that gives the p-value."""
LEAST = 4
"""Least number of heads for which Fisher's transformation gives an interval."""


def pearson(x: Floats, y: Floats, seed: int) -> Estimate:
    """Linear correlation of `[N]` and `[N]`; Fisher's interval, standard error 1 / √(N - 3).

    The p-value of r = 0 is that of a two-sided permutation test: (1 + permutations with |r| as large) /
    (1 + permutations). Raises InvalidRequestError for fewer than four points, or for values that are all the same.
    """
    value, p_value = _coefficient(x, y, seed)
    return _with_interval(value, p_value, 1 / math.sqrt(max(len(x) - 3, 1)))


def spearman(x: Floats, y: Floats, seed: int, strata: int = 1) -> Estimate:
    """Correlation of the ranks of `[N]` and `[N]`; equal values share their mean rank. Raises as `pearson`.

    Standard error √((1 + r²/2) / (N - 3)) (Bonett and Wright 2000). strata: number of groups, if x and y are already
    ranks within groups. Each group but the first takes another degree of freedom.
    """
    value, p_value = _coefficient(ranks(x), ranks(y), seed)
    return _with_interval(value, p_value, math.sqrt((1 + value**2 / 2) / max(len(x) - 2 - strata, 1)))


def ranks(values: Floats) -> Floats:
    """Ranks from 1; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + 1 + last) / 2)[inverse]


def _coefficient(x: Floats, y: Floats, seed: int) -> tuple[float, float]:
    if len(x) < LEAST:
        raise InvalidRequestError(f"{len(x)} heads: a correlation needs {LEAST} or more")
    x = x - x.mean()
    y = y - y.mean()
    norm = math.sqrt(float(x @ x) * float(y @ y))
    if not norm:
        raise InvalidRequestError("all heads have the same value on one of the texts: there is no correlation")
    value = float(x @ y) / norm
    rng = np.random.default_rng(seed)
    shuffled = np.array([x @ rng.permutation(y) for _ in range(PERMUTATIONS)]) / norm
    as_large = int(np.sum(np.abs(shuffled) >= abs(value) - 1e-12))
    return max(-1.0, min(1.0, value)), (1 + as_large) / (1 + PERMUTATIONS)


def _with_interval(value: float, p_value: float, error: float) -> Estimate:
    if abs(value) > 1 - 1e-12:
        return Estimate(value, value, value, p_value)
    z = math.atanh(value)
    reach = NormalDist().inv_cdf(0.975) * error
    return Estimate(value, math.tanh(z - reach), math.tanh(z + reach), p_value)


def analyse(
    subject: Subject, texts: Sequence[Text], effect: str, settings: Settings, progress: Progress = silent
) -> Result[CorrelationData]:
    """Effects of all open heads on two texts, and their correlation.

    Raises InvalidRequestError for an unknown effect, for texts that are not two different ones, for too few heads, and
    as `measure`.
    """
    if effect not in EFFECTS:
        raise InvalidRequestError(f"effect {effect!r}: choose one of {', '.join(EFFECTS)}")
    if len(texts) != 2:
        raise InvalidRequestError(f"{len(texts)} texts: give exactly two")
    if texts[0].source.sha256 == texts[1].source.sha256:
        raise InvalidRequestError("both texts are the same sentences; give two different ones")
    settings = replace(settings, bleu=effect == "bleu")
    first, second = (_effects(subject, text, effect, settings, progress) for text in texts)
    heads = []
    for head, one, other in zip(subject.layout.heads(), first.tolist(), second.tolist(), strict=True):
        heads.append(HeadOnTwoTexts(**asdict(head), first=one, second=other))
    how = {} if effect == "importance" else settings.to_json(texts[0])
    return subject.result(
        COMMAND,
        *(text.source for text in texts),
        settings={**how, "effect": effect, "seed": settings.seed},
        data=CorrelationData(
            heads=heads,
            pearson=pearson(first, second, settings.seed),
            spearman=spearman(first, second, settings.seed),
        ),
    )


def _effects(subject: Subject, text: Text, effect: str, settings: Settings, progress: Progress) -> Floats:
    if effect == "importance":
        return sample_values(subject, text, progress=progress).mean(0)
    heads = ablate.analyse(subject, text, settings, progress=progress).data.heads
    return np.array([getattr(head, f"delta_{effect}").value for head in heads])


def summary(result: Result[CorrelationData]) -> Summary:
    """One row per coefficient."""
    data = result.data
    rows = []
    for name, r in (("Pearson", data.pearson), ("Spearman", data.spearman)):
        rows.append((name, interval(r, 3), probability(r.p_value)))
    first, second = (corpus.name for corpus in result.corpora)
    note = f"{result.settings['effect']} of {len(data.heads)} heads on {first} and on {second}"
    return Summary("Heads on two texts", ("correlation", "r (95 %)", "p"), tuple(rows), (note,))

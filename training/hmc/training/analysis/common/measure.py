"""Loss and BLEU of a checkpoint under many head masks, with intervals and p-values.

Intervals and p-values are those of `hmc.artifact.significance`: percentiles of a paired bootstrap over sentences, and
sacreBLEU's paired approximate randomisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.significance import (
    RESAMPLES,
    SEED,
    TEST,
    Estimate,
    Floats,
    Resampler,
    bleu,
    bleu_signature,
    bleu_statistics,
    check_seed,
    interval,
    p_value,
    tokenizer_of,
)
from hmc.training.analysis.common.decoding import translations
from hmc.training.analysis.common.masks import BATCH_TOKENS, Losses, Masks, sentence_losses
from hmc.training.analysis.common.subject import Progress, Subject, Text, silent


@dataclass(frozen=True)
class Settings:
    """How masks are scored."""

    bleu: bool = True
    """False: loss only, which needs no decoding."""
    beam: int = 1
    """1: greedy."""
    resamples: int = RESAMPLES
    """Bootstrap resamples of the intervals, and trials of the test that gives the p-values."""
    seed: int = SEED
    """Seed of the resamples and of the trials."""
    batch_tokens: int = BATCH_TOKENS
    """Most padded positions of one forward pass, over all its masks."""

    def __post_init__(self) -> None:
        for name, least in (("beam", 1), ("resamples", 100), ("batch_tokens", 1)):
            if getattr(self, name) < least:
                raise InvalidRequestError(f"{name} {getattr(self, name)}: choose {least} or more")
        check_seed(self.seed)

    def to_json(self, text: Text) -> dict[str, Any]:
        """The settings that change the numbers of `text` by more than rounding."""
        search = {"beam": self.beam, "bleu_signature": bleu_signature(text.references)} if self.bleu else {}
        chance = {"test": TEST, "trials": self.resamples, "resamples": self.resamples, "seed": self.seed}
        return {**search, "loss": "nats per target token", **chance}


class Measurement:
    """Scores of M masks on N sentences. Differences are paired: both masks see the same sentences."""

    def __init__(self, losses: Losses, counts: npt.NDArray[np.int64] | None, settings: Settings) -> None:
        """counts: `[M, N, 10]`, the BLEU statistics of each mask's translations; None without BLEU."""
        self.losses = losses
        self.counts = counts
        self.settings = settings

    @cached_property
    def _resampler(self) -> Resampler:
        return Resampler(len(self.losses.tokens), self.settings.resamples, self.settings.seed)

    @cached_property
    def _losses(self) -> Floats:
        """`[resamples, M]`."""
        return self._resampler.totals(self.losses.sums.T) / self._resampler.totals(self.losses.tokens)[:, None]

    @cached_property
    def _bleus(self) -> Floats:
        """`[resamples, M]`."""
        assert self.counts is not None
        return np.stack([bleu(self._resampler.totals(rows)) for rows in self.counts], axis=1)

    @cached_property
    def loss(self) -> Floats:
        """`[M]` nats per target token."""
        return self.losses.mean()

    @cached_property
    def bleu(self) -> Floats:
        """`[M]` sacreBLEU."""
        assert self.counts is not None
        return bleu(self.counts.sum(axis=1))

    def scores(self, mask: int) -> dict[str, Any]:
        """Fields of `MaskScores`: loss and BLEU of a mask with their intervals."""
        scores = {"loss": Estimate(float(self.loss[mask]), *interval(self._losses[:, mask]))}
        if self.counts is not None:
            scores["bleu"] = Estimate(float(self.bleu[mask]), *interval(self._bleus[:, mask]))
        return scores

    def deltas(self, mask: int) -> dict[str, Any]:
        """Fields of `Deltas`: loss and BLEU of `mask` minus those of the first mask, with intervals and p-values."""
        deltas = {"delta_loss": self.delta_loss(mask)}
        if self.counts is not None:
            value = float(self.bleu[mask] - self.bleu[0])
            ends = interval(self._bleus[:, mask] - self._bleus[:, 0])
            p = p_value(self.counts[mask], self.counts[0], bleu, **self._trials)
            deltas["delta_bleu"] = Estimate(value, *ends, p)
        return deltas

    def delta_loss(self, mask: int) -> Estimate:
        """Loss of `mask` minus the loss of the first mask, with interval and p-value."""
        ends = interval(self._losses[:, mask] - self._losses[:, 0])
        rows = [np.stack([self.losses.sums[m], self.losses.tokens], axis=1) for m in (mask, 0)]
        p = p_value(rows[0], rows[1], _loss_per_token, **self._trials)
        return Estimate(float(self.loss[mask] - self.loss[0]), *ends, p)

    @property
    def _trials(self) -> dict[str, int]:
        return {"trials": self.settings.resamples, "seed": self.settings.seed}

    def relative_bleu(self, mask: int) -> Estimate:
        """BLEU of `mask` divided by the BLEU of the first mask, which must not be 0.

        Resamples in which the divisor is 0 are left out of the interval.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            resampled = self._bleus[:, mask] / self._bleus[:, 0]
        return Estimate(float(self.bleu[mask] / self.bleu[0]), *interval(resampled[np.isfinite(resampled)]))


def _loss_per_token(totals: npt.NDArray[Any]) -> Floats:
    """Summed nats and tokens `[…, 2]` → nats per token `[…]`."""
    return np.asarray(totals[..., 0] / totals[..., 1], np.float64)


def _statistics(outputs: Sequence[Sequence[str]], references: Sequence[str]) -> npt.NDArray[np.int64]:
    """BLEU statistics `[M, N, 10]` of M masks' translations. A translation that several masks share is counted once."""
    numbers: dict[tuple[str, str], int] = {}
    which = np.empty((len(outputs), len(references)), int)
    for output, row in zip(outputs, which, strict=True):
        row[:] = [numbers.setdefault(pair, len(numbers)) for pair in zip(output, references, strict=True)]
    texts, targets = zip(*numbers, strict=True)
    return bleu_statistics(texts, targets, tokenizer_of(references))[which]


def measure(
    subject: Subject,
    text: Text,
    masks: Masks | Sequence[npt.NDArray[np.bool_]],
    settings: Settings,
    progress: Progress = silent,
) -> Measurement:
    """Scores masks `[M, total]`, True = open. Equal masks are computed once.

    Raises InvalidArtifactError for NaN weights, InvalidRequestError where a loss or a translation's score is NaN.
    """
    subject.check_weights()
    distinct, which = np.unique(np.asarray(masks, bool), axis=0, return_inverse=True)
    losses = sentence_losses(
        subject.model,
        subject.vocabulary,
        text.pairs,
        distinct,
        batch_tokens=settings.batch_tokens,
        progress=progress,
    )
    counts = None
    if settings.bleu:
        outputs = translations(
            subject.model,
            subject.vocabulary,
            text.sources,
            distinct,
            beam=settings.beam,
            batch_tokens=settings.batch_tokens,
            progress=progress,
        )
        counts = _statistics(outputs, text.references)[which]
    return Measurement(Losses(losses.sums[which], losses.tokens), counts, settings)

"""Loss and BLEU of a checkpoint under many head masks, with intervals: what every masking experiment asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.artifact.errors import InvalidRequestError
from hmc.training.analysis.bootstrap import (
    RESAMPLES,
    SEED,
    Estimate,
    Resampler,
    bleu,
    bleu_signature,
    bleu_statistics,
    difference,
    estimate,
)
from hmc.training.analysis.decoding import translations
from hmc.training.analysis.masks import BATCH_TOKENS, Losses, Masks, sentence_losses
from hmc.training.analysis.subject import Progress, Subject, Text, silent


@dataclass(frozen=True)
class Settings:
    """How masks are scored."""

    bleu: bool = True
    """False: loss only, which needs no decoding."""
    beam: int = 1
    """1: greedy."""
    resamples: int = RESAMPLES
    seed: int = SEED
    """Of the bootstrap."""
    batch_tokens: int = BATCH_TOKENS

    def __post_init__(self) -> None:
        for name, least in (("beam", 1), ("resamples", 100), ("batch_tokens", 1)):
            if getattr(self, name) < least:
                raise InvalidRequestError(f"{name} {getattr(self, name)}: choose {least} or more")
        if not 0 <= self.seed < 2**32:
            raise InvalidRequestError(f"seed {self.seed}: choose 0 to {2**32 - 1}")

    def to_json(self) -> dict[str, Any]:
        """What changes the numbers, beyond rounding."""
        search = {"beam": self.beam, "bleu_signature": bleu_signature()} if self.bleu else {}
        return {**search, "loss": "nats per target token", "resamples": self.resamples, "seed": self.seed}


class Measurement:
    """Scores of M masks on N sentences; differences are paired, sentence by sentence."""

    def __init__(self, losses: Losses, counts: npt.NDArray[np.int64] | None, settings: Settings) -> None:
        """counts: `[M, N, 10]` of `bleu_statistics`, None without BLEU."""
        self.losses, self.counts, self.settings = losses, counts, settings

    @cached_property
    def _resampler(self) -> Resampler:
        return Resampler(len(self.losses.tokens), self.settings.resamples, self.settings.seed)

    @cached_property
    def _losses(self) -> npt.NDArray[np.float64]:
        """`[resamples, M]`."""
        return self._resampler.totals(self.losses.sums.T) / self._resampler.totals(self.losses.tokens)[:, None]

    @cached_property
    def _bleus(self) -> npt.NDArray[np.float64]:
        """`[resamples, M]`."""
        assert self.counts is not None
        return np.stack([bleu(self._resampler.totals(rows)) for rows in self.counts], axis=1)

    @cached_property
    def loss(self) -> npt.NDArray[np.float64]:
        """`[M]` nats per target token."""
        return self.losses.mean()

    @cached_property
    def bleu(self) -> npt.NDArray[np.float64]:
        """`[M]` sacreBLEU."""
        assert self.counts is not None
        return bleu(self.counts.sum(axis=1))

    def scores(self, mask: int) -> dict[str, Any]:
        """Loss and BLEU of a mask with their intervals."""
        found = {"loss": estimate(float(self.loss[mask]), self._losses[:, mask]).to_json()}
        if self.counts is not None:
            found["bleu"] = estimate(float(self.bleu[mask]), self._bleus[:, mask]).to_json()
        return found

    def deltas(self, mask: int, base: int = 0) -> dict[str, Any]:
        """Differences of a mask to another one, with interval and p-value."""
        found = {"delta_loss": self.delta_loss(mask, base).to_json()}
        if self.counts is not None:
            value = float(self.bleu[mask] - self.bleu[base])
            found["delta_bleu"] = difference(value, self._bleus[:, mask] - self._bleus[:, base]).to_json()
        return found

    def relative_bleu(self, mask: int, base: int = 0) -> Estimate:
        """BLEU of a mask divided by that of another one, which must not be 0; resamples where it is 0 do not count."""
        with np.errstate(divide="ignore", invalid="ignore"):
            resampled = self._bleus[:, mask] / self._bleus[:, base]
        return estimate(float(self.bleu[mask] / self.bleu[base]), resampled[np.isfinite(resampled)])

    def delta_loss(self, mask: int, base: int = 0) -> Estimate:
        """Loss of a mask minus that of another one."""
        return difference(float(self.loss[mask] - self.loss[base]), self._losses[:, mask] - self._losses[:, base])


def measure(
    subject: Subject,
    text: Text,
    masks: Masks | Sequence[npt.NDArray[np.bool_]],
    settings: Settings,
    progress: Progress = silent,
) -> Measurement:
    """Scores masks `[M, total]`; equal masks are computed once. Raises InvalidRequestError."""
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
        counts = bleu_statistics(outputs, text.references)[which]
    return Measurement(Losses(losses.sums[which], losses.tokens), counts, settings)

"""Ablation: each head masked on its own, with the change in loss and BLEU (Michel et al. 2019, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import Head
from hmc.training.analysis.common.masks import close_heads
from hmc.training.analysis.common.measure import Settings, measure
from hmc.training.analysis.common.records import AblationData, HeadEffect, MaskScores
from hmc.training.analysis.common.result import Result, model_shape
from hmc.training.analysis.common.subject import Progress, Subject, Text, silent
from hmc.training.analysis.common.summary import Summary, change, interval, probability

COMMAND = "ablate"
SHOWN = 10
"""Rows of the table."""
SIGNIFICANT = 0.01
"""p-value below which Michel et al. (2019) mark a difference."""


def analyse(
    subject: Subject, text: Text, settings: Settings, heads: Sequence[Head] = (), progress: Progress = silent
) -> Result[AblationData]:
    """Change in loss and BLEU with each of `heads` masked; empty: each open head.

    Raises InvalidRequestError for a model without heads, and as `measure`.
    """
    chosen = list(heads) or list(subject.layout.heads())
    if not chosen:
        raise InvalidRequestError("this checkpoint has no open heads, so there is nothing to mask")
    masks = np.stack([close_heads(subject.layout, []), *(close_heads(subject.layout, [head]) for head in chosen)])
    measured = measure(subject, text, masks, settings, progress)
    effects = [HeadEffect(**asdict(head), **measured.deltas(mask)) for mask, head in enumerate(chosen, 1)]
    return subject.result(
        COMMAND,
        text.source,
        settings=settings.to_json(text),
        data=AblationData(**model_shape(subject.checkpoint), full=MaskScores(**measured.scores(0)), heads=effects),
    )


def summary(result: Result[AblationData]) -> Summary:
    """The heads without which the loss rises most."""
    heads = result.data.heads
    full = result.data.full
    rows = []
    for effect in sorted(heads, key=lambda effect: -effect.delta_loss.value)[:SHOWN]:
        row = [str(effect.head), change(effect.delta_loss, 4)]
        if effect.delta_bleu:
            row += [change(effect.delta_bleu), probability(effect.delta_bleu.p_value)]
        rows.append(tuple(row))
    columns = ["head masked", "Δ loss (95 %)"]
    whole = f"all open: loss {interval(full.loss, 4)}"
    metric = "the loss"
    if full.bleu:
        columns += ["Δ BLEU (95 %)", "p"]
        whole += f", BLEU {interval(full.bleu)}"
        metric = "BLEU"
    sure = 0
    worse = 0
    for effect in heads:
        delta = effect.delta_bleu or effect.delta_loss
        if delta.p_value is not None and delta.p_value < SIGNIFICANT:
            sure += 1
            worse += (delta.value < 0) == (full.bleu is not None)
    note = (
        f"{sure} of {len(heads)} heads change {metric} when masked alone (p < {SIGNIFICANT}): {worse} for the worse, "
        f"{sure - worse} for the better; with no effect at all, chance would give about {SIGNIFICANT * len(heads):.1f}"
    )
    title = f"One head masked: the {len(rows)} whose loss rises most"
    return Summary(title, tuple(columns), tuple(rows), (note, whole))

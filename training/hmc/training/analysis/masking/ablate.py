"""Ablation: each head masked on its own, with the change in loss and BLEU (Michel et al. 2019, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import Head
from hmc.training.analysis.common.masks import close_heads
from hmc.training.analysis.common.measure import Settings, measure
from hmc.training.analysis.common.result import Result, head_of, head_rows, model_shape
from hmc.training.analysis.common.subject import Progress, Subject, Text, silent
from hmc.training.analysis.common.summary import Summary, change, interval, probability

COMMAND = "ablate"
SHOWN = 10
"""Rows of the table."""
SIGNIFICANT = 0.01
"""p-value below which Michel et al. (2019) mark a difference."""


def analyse(
    subject: Subject, text: Text, settings: Settings, heads: Sequence[Head] = (), progress: Progress = silent
) -> Result:
    """Change in loss and BLEU with each of `heads` masked; empty: each open head.

    Raises InvalidRequestError for a model without heads, and as `measure`.
    """
    chosen = list(heads) or list(subject.layout.heads())
    if not chosen:
        raise InvalidRequestError("this checkpoint has no open heads, so there is nothing to mask")
    masks = np.stack([close_heads(subject.layout, closed) for closed in ([], *([head] for head in chosen))])
    found = measure(subject, text, masks, settings, progress)
    return subject.result(
        COMMAND,
        text.source,
        settings=settings.to_json(text),
        data={
            **model_shape(subject.checkpoint),
            "full": found.scores(0),
            "heads": head_rows(chosen, (found.deltas(mask) for mask in range(1, len(masks)))),
        },
    )


def summary(result: Result) -> Summary:
    """The heads without which the loss rises most."""
    heads = result.data["heads"]
    full = result.data["full"]
    with_bleu = "bleu" in full
    measure_name = "delta_bleu" if with_bleu else "delta_loss"
    rows = tuple(
        (
            str(head_of(row)),
            change(row["delta_loss"], 4),
            *((change(row["delta_bleu"]), probability(row["delta_bleu"]["p_value"])) if with_bleu else ()),
        )
        for row in sorted(heads, key=lambda row: -row["delta_loss"]["value"])[:SHOWN]
    )
    sure = [row for row in heads if row[measure_name]["p_value"] < SIGNIFICANT]
    worse = sum((row[measure_name]["value"] < 0) == with_bleu for row in sure)
    notes = [
        f"{len(sure)} of {len(heads)} heads change {'BLEU' if with_bleu else 'the loss'} when masked alone "
        f"(p < {SIGNIFICANT}): {worse} for the worse, {len(sure) - worse} for the better; "
        f"with no effect at all, chance would give about {SIGNIFICANT * len(heads):.1f}",
        f"all open: loss {interval(full['loss'], 4)}" + (f", BLEU {interval(full['bleu'])}" if with_bleu else ""),
    ]
    columns = ("head masked", "Δ loss (95 %)", *(("Δ BLEU (95 %)", "p") if with_bleu else ()))
    return Summary(f"One head masked: the {len(rows)} whose loss rises most", columns, rows, tuple(notes))

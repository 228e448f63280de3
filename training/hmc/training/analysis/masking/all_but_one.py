"""Each head kept as the only one of its layer: loss and BLEU (Michel et al. 2019, section 3.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import KINDS, Head
from hmc.training.analysis.common.masks import close_heads
from hmc.training.analysis.common.measure import Settings, measure
from hmc.training.analysis.common.result import Result, model_shape
from hmc.training.analysis.common.subject import Progress, Subject, Text, silent
from hmc.training.analysis.common.summary import Summary, change, probability

COMMAND = "all-but-one"


def analyse(subject: Subject, text: Text, settings: Settings, progress: Progress = silent) -> Result:
    """For each layer of each kind: the loss with each head kept alone, and BLEU for the best head, which has the least
    loss.

    The best head is chosen on the text on which it is then scored, so its scores are slightly too good. Layers with
    fewer than two open heads are left out. Raises InvalidRequestError when that leaves no layer.
    """
    layout = subject.layout
    places = [(kind, layer) for kind in KINDS for layer, row in enumerate(layout[kind]) if len(row) > 1]
    if not places:
        raise InvalidRequestError("no layer of this checkpoint has two or more open heads: nothing to mask")
    everything = close_heads(layout, [])
    kept = [(kind, layer, index) for kind, layer in places for index in layout[kind][layer]]
    masks = {
        one: close_heads(layout, [Head(one[0], one[1], i) for i in layout[one[0]][one[1]] if i != one[2]])
        for one in kept
    }
    loss_only = replace(settings, bleu=False)
    losses = measure(subject, text, np.stack([everything, *masks.values()]), loss_only, progress)
    number = {one: mask for mask, one in enumerate(kept, 1)}
    best = {
        (kind, layer): min(layout[kind][layer], key=lambda i: (losses.loss[number[kind, layer, i]], i))
        for kind, layer in places
    }
    scored = measure(
        subject, text, np.stack([everything, *(masks[k, n, best[k, n]] for k, n in places)]), settings, progress
    )
    layers: list[dict[str, Any]] = []
    for mask, (kind, layer) in enumerate(places, 1):
        alone = [
            {"index": i, "delta_loss": losses.delta_loss(number[kind, layer, i]).to_json()} for i in layout[kind][layer]
        ]
        layers.append(
            {
                "kind": kind,
                "layer": layer,
                "heads": alone,
                "best": best[kind, layer],
                **scored.deltas(mask),
            }
        )
    return subject.result(
        COMMAND,
        text.source,
        settings=settings.to_json(text),
        data={**model_shape(subject.checkpoint), "full": scored.scores(0), "layers": layers},
    )


def summary(result: Result) -> Summary:
    """One row per layer: its best head, and the change in scores with that head alone."""
    with_bleu = "bleu" in result.data["full"]
    rows = tuple(
        (
            f"{layer['kind']}.{layer['layer']}",
            str(len(layer["heads"])),
            str(layer["best"]),
            change(layer["delta_loss"], 4),
            *((change(layer["delta_bleu"]), probability(layer["delta_bleu"]["p_value"])) if with_bleu else ()),
        )
        for layer in result.data["layers"]
    )
    columns = ("layer", "open", "kept", "Δ loss (95 %)", *(("Δ BLEU (95 %)", "p") if with_bleu else ()))
    return Summary("All heads of a layer masked but the best one", columns, rows)

"""Each head kept as the only one of its layer: loss and BLEU (Michel et al. 2019, section 3.3)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import KINDS, Head
from hmc.training.analysis.common.masks import close_heads
from hmc.training.analysis.common.measure import Settings, measure
from hmc.training.analysis.common.records import AllButOneData, KeptHead, KeptLayer, MaskScores
from hmc.training.analysis.common.result import Result, model_shape
from hmc.training.analysis.common.subject import Progress, Subject, Text, silent
from hmc.training.analysis.common.summary import Summary, change, probability

COMMAND = "all-but-one"


def analyse(subject: Subject, text: Text, settings: Settings, progress: Progress = silent) -> Result[AllButOneData]:
    """For each layer of each kind: the loss with each head kept alone, and BLEU for the best head, which has the least
    loss.

    The best head is chosen on the text on which it is then scored, so its scores are slightly too good. Layers with
    fewer than two open heads are left out. Raises InvalidRequestError when that leaves no layer.
    """
    layout = subject.layout
    everything = close_heads(layout, [])
    choices: list[list[Head]] = []
    masks = [everything]
    number: dict[Head, int] = {}
    for kind in KINDS:
        for layer, indices in enumerate(layout[kind]):
            heads = [Head(kind, layer, index) for index in indices]
            if len(heads) < 2:
                continue
            choices.append(heads)
            for head in heads:
                number[head] = len(masks)
                masks.append(close_heads(layout, set(heads) - {head}))
    if not choices:
        raise InvalidRequestError("no layer of this checkpoint has two or more open heads: nothing to mask")
    losses = measure(subject, text, np.stack(masks), replace(settings, bleu=False), progress)
    best = [min(heads, key=lambda head: losses.loss[number[head]]) for heads in choices]
    with_best = [everything, *(masks[number[head]] for head in best)]
    scored = measure(subject, text, np.stack(with_best), settings, progress)
    layers = []
    for mask, (heads, kept) in enumerate(zip(choices, best, strict=True), 1):
        alone = [KeptHead(index=head.index, delta_loss=losses.delta_loss(number[head])) for head in heads]
        deltas = scored.deltas(mask)
        layers.append(KeptLayer(kind=kept.kind, layer=kept.layer, heads=alone, best=kept.index, **deltas))
    return subject.result(
        COMMAND,
        text.source,
        settings=settings.to_json(text),
        data=AllButOneData(**model_shape(subject.checkpoint), full=MaskScores(**scored.scores(0)), layers=layers),
    )


def summary(result: Result[AllButOneData]) -> Summary:
    """One row per layer: its best head, and the change in scores with that head alone."""
    columns = ["layer", "open", "kept", "Δ loss (95 %)"]
    if result.data.full.bleu:
        columns += ["Δ BLEU (95 %)", "p"]
    rows = []
    for layer in result.data.layers:
        row = [f"{layer.kind}.{layer.layer}", str(len(layer.heads)), str(layer.best), change(layer.delta_loss, 4)]
        if layer.delta_bleu:
            row += [change(layer.delta_bleu), probability(layer.delta_bleu.p_value)]
        rows.append(tuple(row))
    return Summary("All heads of a layer masked but the best one", tuple(columns), tuple(rows))

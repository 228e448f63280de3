"""Confidence of a head: its largest attention weight, averaged over tokens (Voita et al. 2019, figure 1b)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import numpy as np
import numpy.typing as npt

from hmc.training.analysis.common.records import ConfidenceData, HeadConfidence
from hmc.training.analysis.common.result import Place, Result, add_to, in_order, model_shape
from hmc.training.analysis.common.subject import Progress, Subject, Text, silent
from hmc.training.analysis.common.summary import Summary, plain
from hmc.training.analysis.common.views import READS, View, corpus_views, peaks, tokenize

COMMAND = "confidence"
SHOWN = 10
"""Rows of the table."""


def confidence(views: Iterable[View]) -> dict[Place, npt.NDArray[np.float64]]:
    """(kind, layer) → `[H]`: mean over queries of the largest weight on a token. Queries and tokens: see `views`."""
    sums: dict[Place, npt.NDArray[np.float64]] = {}
    counts: dict[Place, int] = {}
    for view in views:
        place = (view.kind, view.layer)
        highest, _, counted = peaks(view)
        total = (highest * counted[:, None]).sum((0, 2)).cpu().numpy().astype(np.float64)
        add_to(sums, place, total)
        counts[place] = counts.get(place, 0) + int(counted.sum())
    return {place: total / max(1, counts[place]) for place, total in sums.items()}


def analyse(
    subject: Subject, text: Text, *, forced: bool = False, progress: Progress = silent
) -> Result[ConfidenceData]:
    """Confidence of every open head over a text.

    forced: the decoder reads the references in place of the model's own greedy translations. Raises
    InvalidArtifactError for NaN weights, InvalidRequestError for hidden states that are NaN.
    """
    prepared = tokenize(subject, text, forced=forced, progress=progress)
    measured = confidence(corpus_views(subject.model, prepared.pairs, progress))
    values = zip(subject.layout.heads(), in_order(measured, subject.layout), strict=True)
    heads = [HeadConfidence(**asdict(head), confidence=float(value)) for head, value in values]
    return subject.result(
        COMMAND,
        text.source,
        settings={
            "decoder_reads": READS[forced],
            "left_out": "end of sentence, start symbol, padding, tokens that name a language",
        },
        data=ConfidenceData(**model_shape(subject.checkpoint), heads=heads, sentences_cut=prepared.cut),
    )


def summary(result: Result[ConfidenceData]) -> Summary:
    """The most confident heads."""
    ranked = sorted(result.data.heads, key=lambda row: -row.confidence)[:SHOWN]
    rows = tuple((str(row.head), plain(row.confidence, 3)) for row in ranked)
    notes = (f"decoder reads {result.settings['decoder_reads']}",)
    return Summary(f"The {len(rows)} most confident heads", ("head", "mean largest weight"), rows, notes)

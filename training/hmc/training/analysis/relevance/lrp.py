"""Relevance of every head to what the model predicts (Voita et al. 2019, section 4, figures 1a, 2a and 2c)."""

from __future__ import annotations

from hmc.training.analysis.common.per_head import head_of, head_rows, in_order, model_shape
from hmc.training.analysis.common.result import Result, versions
from hmc.training.analysis.common.subject import Progress, Subject, Text, silent
from hmc.training.analysis.common.summary import Summary, plain
from hmc.training.analysis.common.views import READS, tokenize
from hmc.training.analysis.relevance.propagation import LrpScores

COMMAND = "lrp"
SHOWN = 10
CONSERVED = 1e-4
"""Largest error of conservation at which a result is valid."""


def analyse(subject: Subject, text: Text, *, forced: bool = False, progress: Progress = silent) -> Result:
    """Relevance of every open head to the top-1 logit, over all generation steps of the text's source sentences.

    forced: the decoder reads the references in place of the model's own greedy translations. Raises
    InvalidArtifactError for NaN weights, InvalidRequestError for hidden states that are NaN.
    """
    prepared = tokenize(subject, text, forced=forced, progress=progress)
    scores = LrpScores(subject.model)
    for number, pair in enumerate(prepared.pairs, 1):
        scores.add(pair.source, [subject.model.arch.decoder_start, *pair.target[:-1]])
        progress(f"relevance: {number} of {len(prepared.pairs)} sentences")
    if scores.worst > CONSERVED:
        raise AssertionError(f"relevance is not conserved: a sum of relevances is off by {scores.worst:g}")
    relevance = {place: values.tolist() for place, values in scores.relevance().items()}
    values = [{"relevance": value} for value in in_order(relevance, subject.layout)]
    layers = [
        {"kind": kind, "layer": layer, "through_heads": share}
        for (kind, layer), share in sorted(scores.through_heads().items())
    ]
    return Result(
        command=COMMAND,
        checkpoints=[subject.source],
        corpora=[text.source],
        settings={
            "explained": "top-1 logit of every generation step",
            "decoder_reads": READS[forced],
            "rule": "alpha-beta, 1/2 and 1/2; no bias, no stabiliser; softmax and norm statistics constant",
            "normalised": "over the heads of a layer, at every step",
        },
        versions=versions(),
        data={
            **model_shape(subject.checkpoint),
            "heads": head_rows(subject.layout.heads(), values),
            "layers": layers,
            "generation_steps": scores.steps,
            "sentences_cut": prepared.cut,
            "conservation_error": scores.worst,
        },
    )


def summary(result: Result) -> Summary:
    """The heads whose relevance is most above an equal share of their layer."""
    heads = result.data["heads"]
    sizes: dict[tuple[str, int], int] = {}
    for row in heads:
        sizes[row["kind"], row["layer"]] = sizes.get((row["kind"], row["layer"]), 0) + 1
    ranked = sorted(heads, key=lambda row: -row["relevance"] * sizes[row["kind"], row["layer"]])
    rows = tuple(
        (str(head_of(row)), plain(row["relevance"], 3), plain(1 / sizes[row["kind"], row["layer"]], 3))
        for row in ranked[:SHOWN]
    )
    notes = (
        f"{result.data['generation_steps']} generation steps; decoder reads {result.settings['decoder_reads']}; "
        f"sums of relevances off by at most {result.data['conservation_error']:.1g}",
    )
    title = f"Relevance by LRP: the {len(rows)} heads most above an equal share of their layer"
    return Summary(title, ("head", "relevance", "equal share"), rows, notes)

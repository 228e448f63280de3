"""Head importance I_h on a text, with its mean and variance over heads (Sun et al. 2021, fig. 3, tables 5 and 6)."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import numpy.typing as npt

from hmc.artifact.model.heads import KINDS
from hmc.artifact.model.importance import DEFAULT, Importance
from hmc.training.analysis.common.masks import sentence_groups
from hmc.training.analysis.common.records import HeadImportance, ImportanceData, Spread
from hmc.training.analysis.common.result import Result, model_shape
from hmc.training.analysis.common.subject import Progress, Subject, Text, overflow, silent
from hmc.training.analysis.common.summary import Summary, plain
from hmc.training.data.batches import make_batch
from hmc.training.model.importance import heads_of_attentions, sentence_importance

COMMAND = "importance"
SHOWN = 5
"""Most and least important heads that the table names, each."""


def sample_values(
    subject: Subject, text: Text, how: Importance = DEFAULT, progress: Progress = silent
) -> npt.NDArray[np.float64]:
    """What every sample adds to I_h of every open head, `[samples, total]`: their mean is I_h, but for `layer`.

    Samples are sentences, by default with |∂L(x)/∂ξ_h| (eq. 1); with the estimator `batch` they are groups of
    sentences of similar length. Raises InvalidArtifactError for NaN weights, InvalidRequestError for gradients that are
    NaN or infinite.
    """
    subject.check_weights()
    model = subject.model
    device = model.shared.weight.device
    sources, targets = subject.vocabulary.encode_pairs(text.pairs, model.arch.max_positions)
    lengths = np.array([list(map(len, sources)), list(map(len, targets))])
    values = np.zeros((len(sources), subject.layout.total))
    groups = sentence_groups(lengths.max(0).tolist())
    done = 0
    for group in groups:
        batch = make_batch(
            [sources[i] for i in group], [targets[i] for i in group], model.arch.pad_id, model.arch.decoder_start
        )
        values[group] = sentence_importance(model, batch.to(device), how=how).double().cpu().numpy()
        done += len(group)
        progress(f"importance: {done} of {len(sources)} sentences")
    if not np.isfinite(values).all():
        raise overflow("gradients of the loss")
    if how.estimator == "token":
        source_length, target_length = lengths.mean(1)
        of_encoder = [head.kind == "encoder_self" for head in subject.layout.heads()]
        return values / np.where(of_encoder, source_length, target_length)
    if how.estimator == "batch" and how.sign == "absolute":
        sums = np.stack([np.abs(values[group].sum(0)) for group in groups])
        return sums * (len(groups) / len(sources))
    return values


def head_importance(
    subject: Subject, text: Text, how: Importance = DEFAULT, progress: Progress = silent
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """I_h of every open head and its standard error over samples, `[total]` each. Raises as `sample_values`.

    The error takes the norm of a layer as known.
    """
    values = sample_values(subject, text, how, progress)
    mean = values.mean(0)
    error = values.std(0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.full_like(mean, np.nan)
    if how.normalise == "layer":
        parts = np.split(mean, np.cumsum(heads_of_attentions(subject.model))[:-1])
        norms = np.concatenate([np.full(len(part), np.linalg.norm(part) or 1.0) for part in parts])
        mean = mean / norms
        error = error / norms
    return mean, error


def analyse(
    subject: Subject, text: Text, how: Importance = DEFAULT, progress: Progress = silent
) -> Result[ImportanceData]:
    """I_h of every open head with its standard error. Raises as `sample_values`."""
    mean, error = head_importance(subject, text, how, progress)
    heads = list(subject.layout.heads())
    rows = []
    for head, value, uncertainty in zip(heads, mean.tolist(), error.tolist(), strict=True):
        rows.append(HeadImportance(**asdict(head), importance=value, standard_error=uncertainty))
    kinds = {}
    for kind in KINDS:
        of_kind = mean[[head.kind == kind for head in heads]]
        if len(of_kind):
            kinds[kind] = spread(of_kind)
    return subject.result(
        COMMAND,
        text.source,
        settings={
            "importance": str(how),
            "loss": "summed cross-entropy of a sentence, no label smoothing",
            "variance": "over heads, n",
        },
        data=ImportanceData(**model_shape(subject.checkpoint), heads=rows, all=spread(mean), kinds=kinds),
    )


def spread(values: npt.NDArray[np.float64]) -> Spread:
    """Mean, variance, least and most of `values`, one value per head."""
    return Spread(
        heads=len(values),
        mean=float(values.mean()),
        variance=float(values.var()),
        least=float(values.min()),
        most=float(values.max()),
    )


def summary(result: Result[ImportanceData]) -> Summary:
    """One row for all heads and one per kind: mean and variance of I_h."""
    rows = []
    for name, part in [("all", result.data.all), *result.data.kinds.items()]:
        numbers = (plain(number, 3) for number in (part.mean, part.variance, part.least, part.most))
        rows.append((name, str(part.heads), *numbers))
    ranked = sorted(result.data.heads, key=lambda row: -row.importance)
    names = [f"{row.head} {row.importance:.3f}" for row in ranked]
    notes = (f"most important: {', '.join(names[:SHOWN])}", f"least important: {', '.join(names[::-1][:SHOWN])}")
    how = result.settings.get("importance", str(DEFAULT))
    title = "Head importance I_h" + ("" if how == str(DEFAULT) else f" ({how})")
    return Summary(title, ("heads", "number", "mean", "variance", "least", "most"), tuple(rows), notes)

"""Head importance I_h on a text, with its mean and variance over heads (Sun et al. 2021, fig. 3, tables 5 and 6)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.artifact.model.heads import KINDS
from hmc.artifact.model.importance import DEFAULT, Importance
from hmc.training.analysis.common.masks import sentence_groups
from hmc.training.analysis.common.result import Result, head_of, head_rows, model_shape
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
    vocabulary = subject.vocabulary
    limit = model.arch.max_positions
    device = model.shared.weight.device
    ids = [tuple(vocabulary.cut(side, limit) for side in vocabulary.encode_pair(*pair)) for pair in text.pairs]
    found = np.zeros((len(ids), subject.layout.total))
    groups = sentence_groups([max(map(len, sides)) for sides in ids])
    done = 0
    for group in groups:
        batch = make_batch(
            [ids[i][0] for i in group], [ids[i][1] for i in group], model.arch.pad_id, model.arch.decoder_start
        )
        found[group] = sentence_importance(model, batch.to(device), how=how).double().cpu().numpy()
        done += len(group)
        progress(f"importance: {done} of {len(ids)} sentences")
    if not np.isfinite(found).all():
        raise overflow("gradients of the loss")
    if how.estimator == "token":
        source, target = (np.mean([len(sides[side]) for sides in ids]) for side in (0, 1))
        return found / [source if head.kind == "encoder_self" else target for head in subject.layout.heads()]
    if how.estimator == "batch" and how.sign == "absolute":
        sums = np.stack([np.abs(found[group].sum(0)) for group in groups])
        return sums * (len(groups) / len(ids))
    return found


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


def analyse(subject: Subject, text: Text, how: Importance = DEFAULT, progress: Progress = silent) -> Result:
    """I_h of every open head with its standard error. Raises as `sample_values`."""
    mean, error = head_importance(subject, text, how, progress)
    heads = list(subject.layout.heads())
    per_head = [{"importance": float(m), "standard_error": float(e)} for m, e in zip(mean, error, strict=True)]
    of_kind = {kind: mean[[head.kind == kind for head in heads]] for kind in KINDS}
    return subject.result(
        COMMAND,
        text.source,
        settings={
            "importance": str(how),
            "loss": "summed cross-entropy of a sentence, no label smoothing",
            "variance": "over heads, n",
        },
        data={
            **model_shape(subject.checkpoint),
            "heads": head_rows(heads, per_head),
            "all": spread(mean),
            "kinds": {kind: spread(some) for kind, some in of_kind.items() if len(some)},
        },
    )


def spread(values: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Mean, variance, least and most of `values`, one value per head."""
    return {
        "heads": len(values),
        "mean": float(values.mean()),
        "variance": float(values.var()),
        "least": float(values.min()),
        "most": float(values.max()),
    }


def summary(result: Result) -> Summary:
    """One row for all heads and one per kind: mean and variance of I_h."""
    parts = {"all": result.data["all"], **result.data["kinds"]}
    rows = tuple(
        (name, str(part["heads"]), *(plain(part[key], 3) for key in ("mean", "variance", "least", "most")))
        for name, part in parts.items()
    )
    ranked = sorted(result.data["heads"], key=lambda row: -row["importance"])
    names = [f"{head_of(row)} {row['importance']:.3f}" for row in ranked]
    notes = (f"most important: {', '.join(names[:SHOWN])}", f"least important: {', '.join(names[::-1][:SHOWN])}")
    how = result.settings.get("importance", str(DEFAULT))
    title = "Head importance I_h" + ("" if how == str(DEFAULT) else f" ({how})")
    return Summary(title, ("heads", "number", "mean", "variance", "least", "most"), rows, notes)

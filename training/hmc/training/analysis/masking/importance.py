"""Head importance I_h on a text, with its mean and variance over heads (Sun et al. 2021, fig. 3, tables 5 and 6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hmc.artifact.checkpoint.checkpoint import FORMAT, copy_files
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import KINDS
from hmc.artifact.storage.files import replace_directory
from hmc.training.analysis.common.masks import sentence_groups
from hmc.training.analysis.common.result import Result, head_of, head_rows, model_shape, versions
from hmc.training.analysis.common.subject import Progress, Subject, Text, overflow, silent
from hmc.training.analysis.common.summary import Summary, plain
from hmc.training.data.batches import make_batch
from hmc.training.model.importance import scores_per_head, sentence_importance, write_importance

COMMAND = "importance"
SHOWN = 5
"""Most and least important heads that the table names, each."""


def sentence_values(subject: Subject, text: Text, progress: Progress = silent) -> npt.NDArray[np.float64]:
    """|∂L(x)/∂ξ_h| of every sentence and open head, `[N, total]`. The mean over sentences is I_h (eq. 1).

    Raises InvalidArtifactError for NaN weights, InvalidRequestError for gradients that are NaN or infinite.
    """
    subject.check_weights()
    model, vocabulary, limit = subject.model, subject.vocabulary, subject.model.arch.max_positions
    device = model.shared.weight.device
    ids = [tuple(vocabulary.cut(side, limit) for side in vocabulary.encode_pair(*pair)) for pair in text.pairs]
    found = np.zeros((len(ids), subject.layout.total))
    done = 0
    for group in sentence_groups([max(map(len, sides)) for sides in ids]):
        batch = make_batch(
            [ids[i][0] for i in group], [ids[i][1] for i in group], model.arch.pad_id, model.arch.decoder_start
        )
        found[group] = sentence_importance(model, batch.to(device)).double().cpu().numpy()
        done += len(group)
        progress(f"importance: {done} of {len(ids)} sentences")
    if not np.isfinite(found).all():
        raise overflow("gradients of the loss")
    return found


def analyse(subject: Subject, text: Text, progress: Progress = silent) -> Result:
    """I_h of every open head with its standard error over sentences. Raises as `sentence_values`."""
    values = sentence_values(subject, text, progress)
    mean = values.mean(0)
    error = values.std(0, ddof=1) / np.sqrt(len(values))
    heads = list(subject.layout.heads())
    per_head = [{"importance": float(m), "standard_error": float(e)} for m, e in zip(mean, error, strict=True)]
    of_kind = {kind: mean[[head.kind == kind for head in heads]] for kind in KINDS}
    return Result(
        command=COMMAND,
        checkpoints=[subject.source],
        corpora=[text.source],
        settings={"loss": "summed cross-entropy of a sentence, no label smoothing", "variance": "over heads, n"},
        versions=versions(),
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
    return Summary("Head importance I_h", ("heads", "number", "mean", "variance", "least", "most"), rows, notes)


def save_copy(subject: Subject, result: Result, target: Path) -> None:
    """Copies the checkpoint to `target` and adds I_h, by which `hmc compile` can then rank heads. Closed heads get 0.

    Raises InvalidRequestError where `target` exists.
    """
    check_copy(target)
    values = torch.tensor([row["importance"] for row in result.data["heads"]])
    scores = scores_per_head(values, subject.checkpoint.architecture, subject.layout)
    with replace_directory(target, FORMAT) as folder:
        copy_files(subject.path, folder)
        write_importance(folder, scores)


def check_copy(target: Path, results: Path | None = None) -> None:
    """Raises InvalidRequestError if `target` exists, or is the folder of the `results`."""
    if target.exists():
        raise InvalidRequestError(f"--save {target} exists; choose a new path: a checkpoint is never overwritten")
    if results is not None and target.absolute() == results.absolute():
        raise InvalidRequestError(
            f"--save {target} is also --out, and both would hold an importance.json; choose another"
        )

"""The same heads on two texts: does what a head is worth carry over? (Michel et al. 2019, section 3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from hmc.artifact.errors import InvalidRequestError
from hmc.training.analysis import ablate
from hmc.training.analysis.cells import interval, probability
from hmc.training.analysis.correlation import Floats, pearson, spearman
from hmc.training.analysis.head_rows import head_rows
from hmc.training.analysis.importance import sentence_values
from hmc.training.analysis.measure import Settings
from hmc.training.analysis.result import Result, Summary, versions
from hmc.training.analysis.subject import Progress, Subject, Text, silent

COMMAND = "correlate"
Effect = Literal["loss", "bleu", "importance"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)
"""What is known of a head: Δ loss or Δ BLEU when it is masked alone, or its I_h."""


def analyse(
    subject: Subject, texts: Sequence[Text], effect: str, settings: Settings, progress: Progress = silent
) -> Result:
    """Effects of all open heads on two texts, and how they correlate. Raises InvalidRequestError."""
    if effect not in EFFECTS:
        raise InvalidRequestError(f"effect {effect!r}: choose one of {', '.join(EFFECTS)}")
    if len(texts) != 2:
        raise InvalidRequestError(f"{len(texts)} texts: give exactly two, with --data twice")
    if texts[0].source.sha256 == texts[1].source.sha256:
        raise InvalidRequestError("both texts are the same sentences; give two different ones")
    settings = replace(settings, bleu=effect == "bleu")
    first, second = (_effects(subject, text, effect, settings, progress) for text in texts)
    values = [{"first": float(a), "second": float(b)} for a, b in zip(first, second, strict=True)]
    how = {} if effect == "importance" else settings.to_json()
    return Result(
        command=COMMAND,
        checkpoints=[subject.source],
        corpora=[text.source for text in texts],
        settings={**how, "effect": effect, "seed": settings.seed},
        versions=versions(),
        data={
            "heads": head_rows(subject.layout.heads(), values),
            "pearson": pearson(first, second, settings.seed).to_json(),
            "spearman": spearman(first, second, settings.seed).to_json(),
        },
    )


def _effects(subject: Subject, text: Text, effect: str, settings: Settings, progress: Progress) -> Floats:
    if effect == "importance":
        return sentence_values(subject, text, progress).mean(0)
    rows = ablate.analyse(subject, text, settings, progress=progress).data["heads"]
    return np.array([row[f"delta_{effect}"]["value"] for row in rows])


def summary(result: Result) -> Summary:
    """Both coefficients."""
    rows = tuple(
        (name, interval(result.data[key], 3), probability(result.data[key]["p_value"]))
        for name, key in (("Pearson", "pearson"), ("Spearman", "spearman"))
    )
    first, second = (corpus.name for corpus in result.corpora)
    note = f"{result.settings['effect']} of {len(result.data['heads'])} heads on {first} and on {second}"
    return Summary("Heads on two texts", ("correlation", "r (95 %)", "p"), rows, (note,))

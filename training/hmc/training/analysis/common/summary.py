"""Short tables of results: the table itself, and numbers as text in its cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hmc.artifact.significance import Estimate
from hmc.training.analysis.common.records import MaskScores, MeanAndRange

TITLES = {"bleu": "BLEU", "loss": "loss"}
DIGITS = {"bleu": 2, "loss": 4}


@dataclass(frozen=True)
class Summary:
    """A short table. All cells are text."""

    title: str
    columns: tuple[str, ...]
    """The first column is text, the others are numbers."""
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    """Lines under the table."""

    def markdown(self) -> str:
        """The table and its notes as Markdown, without the title."""
        text = ""
        for line in (self.columns, ("---", *["---:"] * (len(self.columns) - 1)), *self.rows):
            text += "| " + " | ".join(cell.replace("|", "/") for cell in line) + " |\n"
        return text + "".join(f"\n{note}\n" for note in self.notes)


def metric_of(scores: Sequence[MaskScores]) -> str:
    """`bleu` if all of the scores have BLEU, else `loss`."""
    return "bleu" if all(one.bleu for one in scores) else "loss"


def plain(value: float | None, digits: int = 2) -> str:
    """`12.34`, – for None and NaN."""
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def interval(estimate: Estimate, digits: int = 2) -> str:
    """`12.34 (12.01 to 12.70)` of a score."""
    return f"{estimate.value:.{digits}f} ({estimate.low:.{digits}f} to {estimate.high:.{digits}f})"


def change(estimate: Estimate, digits: int = 2) -> str:
    """`-0.42 (-0.71 to -0.13)` of a difference, signs written."""
    return f"{estimate.value:+.{digits}f} ({estimate.low:+.{digits}f} to {estimate.high:+.{digits}f})"


def range_cell(values: MeanAndRange) -> str:
    """`12.7 (11 to 14)` of a mean and its extremes; the mean alone, as a whole number, where they are equal."""
    if values.least == values.most:
        return f"{values.mean:g}"
    return f"{values.mean:.1f} ({values.least:g} to {values.most:g})"


def probability(value: float | None) -> str:
    """A p-value with three digits; `<0.001` below that."""
    if value is None:
        return "–"
    return "<0.001" if value < 0.001 else f"{value:.3f}"

"""Short tables of results: the table itself, and numbers as text in its cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
        rule = tuple("---:" if number else "---" for number in range(len(self.columns)))
        lines = [self.columns, rule, *self.rows]
        table = "".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |\n" for line in lines)
        return table + "".join(f"\n{note}\n" for note in self.notes)


def plain(value: float | None, digits: int = 2) -> str:
    """`12.34`, – for None."""
    return "–" if value is None else f"{value:.{digits}f}"


def interval(estimate: Mapping[str, Any], digits: int = 2) -> str:
    """`12.34 (12.01 to 12.70)` of a score."""
    value, low, high = (plain(estimate[key], digits) for key in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def change(estimate: Mapping[str, Any], digits: int = 2) -> str:
    """`-0.42 (-0.71 to -0.13)` of a difference, signs written."""
    value, low, high = (f"{estimate[key]:+.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def spread_cell(spread: Mapping[str, float]) -> str:
    """`12.7 (11 to 14)` of a mean and its extremes; the mean alone, as a whole number, where they are equal."""
    if spread["least"] == spread["most"]:
        return f"{spread['mean']:g}"
    return f"{spread['mean']:.1f} ({spread['least']:g} to {spread['most']:g})"


def probability(value: float | None) -> str:
    """A p-value with three digits; `<0.001` below that."""
    if value is None:
        return "–"
    return "<0.001" if value < 0.001 else f"{value:.3f}"

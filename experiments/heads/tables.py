"""Writes the tables of docs/heads.md from the JSON that `experiments.heads.run` made: no number is typed by hand.

    python -m experiments.heads.tables runs/heads/report docs/heads.md

A table is the text between `<!-- table: NAME -->` and `<!-- end -->`. A table without data is left as it is and named
on standard error; the exit status is then 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from experiments.support import marked
from hmc.artifact.errors import InvalidRequestError
from hmc.training.analysis.across import budgets, compare, survivors, trajectory
from hmc.training.analysis.common.result import read_result
from hmc.training.analysis.common.summary import Summary, change, plain, probability


def headmask(folder: Path) -> Summary:
    """One row per training: BLEU, its difference to the first training, and the spread of importance."""
    spread = compare.summary(read_result(folder / "compare-importance" / "compare.json", ["compare"]))
    scores = levels(folder, "headmask")
    added = {row[0]: row[1:5] for row in spread.rows}
    rows = tuple((name, *cells, *added[name]) for name, _, *cells in scores.rows)
    columns = ("training", *scores.columns[2:], "mean of I_h", "variance", *spread.columns[3:5])
    return Summary("HeadMask", columns, rows, scores.notes)


def levels(folder: Path, name: str) -> Summary:
    """One row per level of the bundles in NAME/budgets.json."""
    result = read_result(folder / name / "budgets.json", [budgets.COMMAND])
    rows = []
    for series in result.data["series"].values():
        for point in series["points"]:
            for level in point["levels"]:
                delta = {"value": level["bleu_delta"], "low": level["ci_low"], "high": level["ci_high"]}
                is_reference = level["name"] == series["reference_level"]
                compared = ("–", "–") if is_reference else (change(delta), probability(level["p_value"]))
                rows.append((level["name"], str(point["heads"]), plain(level["bleu"]), *compared))
    columns = ("checkpoint", "heads", "BLEU", "Δ BLEU (95 %)", "p")
    return Summary("Levels", columns, tuple(rows), budgets.summary(result).notes[:1])


def curves(folder: Path) -> Summary:
    """BLEU of each training as heads are masked from either end."""
    return compare.summary(read_result(folder / "compare-cumulative" / "compare.json", ["compare"]))


def groups(folder: Path) -> Summary:
    """BLEU with one group of 18 heads masked."""
    return compare.summary(read_result(folder / "compare-groups" / "compare.json", ["compare"]))


TABLES: dict[str, Callable[[Path], Summary]] = {
    "headmask": headmask,
    "curves": curves,
    "groups": groups,
    "survivors": lambda folder: survivors.summary(read_result(folder / "survivors" / "survivors.json", ["survivors"])),
    "budgets": lambda folder: budgets.summary(read_result(folder / "budgets" / "budgets.json", ["budgets"])),
    "trajectory": lambda folder: trajectory.summary(
        read_result(folder / "trajectory" / "trajectory.json", ["trajectory"])
    ),
    "methods": lambda folder: levels(folder, "scratch"),
}


def fill(text: str, folder: Path) -> tuple[str, list[str]]:
    """The report with new tables, and a line for each table that could not be written.

    folder: the results of `experiments.heads.run`. Raises InvalidRequestError for a table of an unknown name.
    """
    problems: list[str] = []

    def table(name: str) -> str | None:
        try:
            return TABLES[name](folder).markdown()
        except InvalidRequestError as error:
            problems.append(f"table {name}: {error}")
            return None

    return marked.fill(text, table, TABLES), problems


def write(folder: Path, report: Path) -> list[str]:
    """Rewrites the report in place. Prints and returns a line for each table that could not be written."""
    text, problems = fill(report.read_text(encoding="utf-8"), folder)
    report.write_text(text, encoding="utf-8")
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return problems


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m experiments.heads.tables FOLDER REPORT")
    sys.exit(1 if write(Path(sys.argv[1]), Path(sys.argv[2])) else 0)

"""Writes the tables of docs/heads.md from the JSON that recipes/heads.sh made, so that no number is typed by hand.

    python recipes/heads_tables.py runs/heads/report docs/heads.md

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. One whose data is not there yet is left as it is and
named; the script then ends with 1.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from hmc.artifact.errors import InvalidRequestError
from hmc.training.analysis import budgets, compare, survivors, trajectory
from hmc.training.analysis.cells import change, plain, probability
from hmc.training.analysis.result import Summary, read_result

MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def headmask(folder: Path) -> Summary:
    """A row a training: BLEU and its difference to the first, and the spread of importance."""
    spread = compare.summary(read_result(folder / "compare-importance" / "compare.json", ["compare"]))
    scores = levels(folder, "headmask")
    added = {row[0]: row[1:5] for row in spread.rows}
    rows = tuple((name, *cells, *added[name]) for name, _, *cells in scores.rows)
    columns = ("training", *scores.columns[2:], "mean of I_h", "variance", *spread.columns[3:5])
    return Summary("HeadMask", columns, rows, scores.notes)


def levels(folder: Path, name: str) -> Summary:
    """A row a level of the bundles in NAME/budgets.json."""
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
    """What masking does to each training."""
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
    """The report with its tables written anew, and what could not be written. Raises InvalidRequestError."""
    problems: list[str] = []

    def table(match: re.Match[str]) -> str:
        name = match[2]
        if name not in TABLES:
            raise InvalidRequestError(f"table {name}: unknown; there are {', '.join(TABLES)}")
        try:
            return f"{match[1]}\n{TABLES[name](folder).markdown()}\n{match[3]}"
        except InvalidRequestError as error:
            problems.append(f"table {name}: {error}")
            return match[0]

    return MARKED.sub(table, text), problems


def main(folder: Path, report: Path) -> int:
    """Rewrites the report in place."""
    text, problems = fill(report.read_text(encoding="utf-8"), folder)
    report.write_text(text, encoding="utf-8")
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python recipes/heads_tables.py FOLDER REPORT")
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))

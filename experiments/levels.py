"""What makes nested levels good: distillation of words and sequences, the sandwich rule, BPE-dropout, which heads.

    python -m experiments.levels --out build/levels --data DIR [--translations SRC TGT] [--more-text SRC TGT ...]
        [--seeds 1,2,3] [--only NAME,…]

DIR holds Multi30k (`train`, `val`, `test_2016_flickr`). --translations is a teacher's text of the same sources, made by
`hmc distill CHECKPOINT --source DIR/train.en.gz -o …`; --more-text, which may be repeated, is its text of other
sources. Without them the rows that need them are left out. Every row is
`hmc prune --nested-steps` from the same checkpoint with as many updates, printed before it runs. The result is
compiled at fp32 and scored at every level with beam 4, on test_2016_flickr and on the demo's own sentences. `control`
trains all heads alone for as many updates; `own` prunes to each number of heads alone. An update of a sandwich has
three passes, so `one-3x` has three times the updates. `all+own-norms` goes on from the levels of `all`, and lets only
layer norms and biases learn, for a quarter as many updates at each level.

What exists is not made again and an interrupted training continues, so the command can be repeated, with more seeds or
other rows too. The report is written after every row, and the table is printed at the end.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.support.script import machine_report, run_script, write_report
from hmc.artifact.errors import InvalidRequestError
from hmc.benchmark.measure.quality import measure_quality
from hmc.benchmark.measure.text import TestSet
from hmc.cli.demo_steps import CHECKPOINT, REF, SRC
from hmc.compiler.bundle.requests import LevelRequest
from hmc.compiler.bundle.writer import compile_bundle

WORDS = ("--distill", "0.5")
ONE = ("--nested-levels", "one")
RESULT, STUDY = "scores.json", "study.json"


@dataclass(frozen=True)
class Row:
    """One way to train the levels."""

    options: tuple[str, ...] = ()
    """Options of `hmc prune` beside those that all rows share."""
    translations: bool = False
    """Train on the teacher's translations too (sequence-level distillation)."""
    more_text: bool = False
    """Train on the teacher's translations of other sources too."""
    updates: float = 1.0
    """Share of --steps."""
    own: int | None = None
    """Prune to that many heads alone; 0: train all heads alone."""
    after: str | None = None
    """Row whose levels then get layer norms and biases of their own; all heads stay as that row has them."""


ROWS = {
    "one": Row(ONE),
    "one-3x": Row(ONE, updates=3),
    "sandwich": Row(),
    "words": Row((*ONE, *WORDS)),
    "sequences": Row(ONE, translations=True),
    "no-bpe-dropout": Row((*ONE, "--bpe-dropout", "0")),
    "sandwich+words": Row(WORDS),
    "sandwich+in-place": Row((*WORDS, "--nested-teacher", "in-place")),
    "sandwich+sequences": Row(translations=True),
    "all": Row(WORDS, translations=True),
    "all+text": Row(WORDS, translations=True, more_text=True),
    "all+in-place": Row((*WORDS, "--nested-teacher", "in-place"), translations=True),
    "all+any-between": Row((*WORDS, "--nested-between", "any"), translations=True),
    "all+shrink": Row((*WORDS, "--nested-shrink", "0.3"), translations=True),
    "all+importance": Row((*WORDS, "--nested-heads", "importance"), translations=True),
    "all+both": Row((*WORDS, "--nested-heads", "both"), translations=True),
    "all+own-norms": Row(
        (*WORDS, "--nested-levels", "smallest", "--freeze", "matrices"), translations=True, updates=0.25, after="all"
    ),
    "all-bpe-dropout": Row((*WORDS, "--bpe-dropout", "0"), translations=True),
    "control": Row(own=0),
    "control+all": Row(WORDS, translations=True, own=0),
    "control+all+text": Row(WORDS, translations=True, more_text=True, own=0),
    "own": Row(own=1),
    "own+all": Row(WORDS, translations=True, own=1),
    "own+all+text": Row(WORDS, translations=True, more_text=True, own=1),
}
"""Name → row. `own` is made once for every budget."""


@dataclass(frozen=True)
class Study:
    """What all rows share."""

    out: Path
    data: Path
    checkpoint: Path
    budgets: tuple[int, ...]
    steps: int
    translations: tuple[str, str] | None
    more_text: tuple[tuple[str, str], ...]
    options: tuple[str, ...]
    """More options of every `hmc prune`."""
    sentences: int | None = None
    """Sentences scored of each test set; None: all."""

    def check(self) -> None:
        """Keeps what all rows share in `out`. Raises InvalidRequestError if rows of something else are there."""
        wanted = {name: json.loads(json.dumps(value, default=str)) for name, value in asdict(self).items()}
        del wanted["out"]
        file = self.out / STUDY
        if not file.is_file():
            self.out.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")
            return
        kept = json.loads(file.read_text(encoding="utf-8"))
        if differing := [name for name in wanted if kept.get(name) != wanted[name]]:
            raise InvalidRequestError(
                f"{self.out} has rows that were made with other settings ({', '.join(differing)}): give those of "
                f"{file}, or choose another --out"
            )

    def corpus(self, name: str) -> str:
        """A split of the corpus as `hmc` names parallel text."""
        return f"{self.data}/{name}.en.gz {self.data}/{name}.de.gz"

    def prune(self, row: Row, folder: Path, heads: tuple[int, ...], seed: int, checkpoint: Path) -> list[str]:
        """Returns the command that trains a row in `folder`, from a checkpoint."""
        steps = max(10, round(self.steps * row.updates))
        how = ["--nested-steps", str(steps), "--nested-heads", "gates", "--eval-every", str(max(1, steps // 10))]
        if row.own == 1:
            how = ["--close-steps", str(max(10, steps // 2)), "--recover-steps", str(steps - max(10, steps // 2))]
        if row.after:
            how += ["--teacher", str(self.checkpoint)]
        command = [sys.executable, "-m", "hmc.cli", "prune", str(checkpoint)]
        command += ["--target-heads", ",".join(map(str, heads)), *how, *self.options, *row.options]
        command += ["--seed", str(seed), "--save-every", "50", "--data", self.corpus("train")]
        if row.translations and self.translations:
            command += ["--data", " ".join(self.translations)]
        if row.more_text:
            command += [part for pair in self.more_text for part in ("--data", " ".join(pair))]
        return [*command, "--dev", self.corpus("val"), "--out", str(folder)]

    def trained(self, name: str, row: Row, seed: int) -> list[tuple[Path, tuple[int, ...]]]:
        """Trains a row, unless it is done; returns its checkpoints, each with the numbers of heads to score."""
        total = self.budgets[0]
        below = self.budgets[1:]
        wanted: list[tuple[str, tuple[int, ...], str, tuple[int, ...]]]
        found: list[tuple[Path, tuple[int, ...]]] = []
        checkpoint = self.checkpoint
        if row.own == 1:
            wanted = [(f"{name}-{heads}-{seed}", (heads,), f"h{heads}", (heads,)) for heads in below]
        elif row.after:
            found = self.trained(row.after, ROWS[row.after], seed)
            checkpoint = found[0][0]
            wanted = [(f"{name}-{heads}-{seed}", (heads,), "nested", (heads,)) for heads in below]
        elif row.own == 0:
            wanted = [(f"{name}-{seed}", (), "nested", (total,))]
        else:
            wanted = [(f"{name}-{seed}", below, "nested", self.budgets)]
        for folder, heads, written, scored in wanted:
            found.append((self.out / folder / written, scored))
            if (self.out / folder / RESULT).is_file():
                continue
            command = self.prune(row, self.out / folder, heads, seed, checkpoint)
            sys.stdout.write(f"$ {shlex.join(command)}\n")
            sys.stdout.flush()
            subprocess.run(command, check=True)
        return found

    def tests(self) -> dict[str, TestSet]:
        """Name → test set."""
        flickr = [self.data / f"test_2016_flickr.{language}.gz" for language in ("en", "de")]
        return {
            "test_2016_flickr": TestSet.read(*flickr, limit=self.sentences),
            "demo": TestSet.read(SRC, REF, limit=self.sentences),
        }

    def scores(self, checkpoint: Path, heads: tuple[int, ...], folder: Path) -> dict[str, dict[str, float]]:
        """Compiles a checkpoint at every number of heads, and returns test set → heads → BLEU. Kept in `folder`."""
        known = folder / RESULT
        if known.is_file():
            kept: dict[str, dict[str, float]] = json.loads(known.read_text(encoding="utf-8"))
            return kept
        bundle = folder / "bundle"
        manifest = compile_bundle([LevelRequest(checkpoint, number, f"h{number}") for number in heads], bundle)
        names = {f"h{number}": str(number) for number in heads}
        found = {}
        for name, test in self.tests().items():
            measured = measure_quality(bundle, test, [level.name for level in manifest.levels], beam=4)
            found[name] = {names[level]: quality.bleu for level, quality in measured.items()}
        known.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return found


def mean_scores(runs: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Returns test set → heads → mean BLEU of runs that differ in their seed."""
    return {
        test: {heads: statistics.mean(run[test][heads] for run in runs) for heads in by_heads}
        for test, by_heads in runs[0].items()
    }


def table(rows: dict[str, Any], budgets: tuple[int, ...]) -> str:
    """Returns the means as a Markdown table: a row for each way, a column for each test set and number of heads."""
    columns = [(test, str(heads)) for test in ("test_2016_flickr", "demo") for heads in budgets]
    lines = [
        "| row | seeds | " + " | ".join(f"{test} {heads}" for test, heads in columns) + " |",
        "| --- | ---: |" + " ---: |" * len(columns),
    ]
    for name, row in rows.items():
        cells = [row["mean"].get(test, {}).get(heads) for test, heads in columns]
        shown = " | ".join("–" if cell is None else f"{cell:.2f}" for cell in cells)
        lines.append(f"| {name} | {len(row['seeds'])} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    """Runs the rows one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--translations", nargs=2, metavar=("SRC", "TGT"))
    parser.add_argument("--more-text", nargs=2, action="append", default=[], metavar=("SRC", "TGT"))
    parser.add_argument("--budgets", default="144,72,36")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--only", default="", help=f"some of {', '.join(ROWS)}")
    parser.add_argument("--options", default="--dropout 0.15 --precision bf16-mixed --eval-sentences 400")
    parser.add_argument("--test-sentences", type=int, help="sentences scored of each test set; default: all")
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(ROWS)
    if unknown := [name for name in names if name not in ROWS]:
        raise InvalidRequestError(f"--only: no row is called {', '.join(unknown)}; there are {', '.join(ROWS)}")
    budgets = tuple(int(number) for number in given.budgets.split(","))
    text = tuple(given.translations) if given.translations else None
    more, options = tuple((src, tgt) for src, tgt in given.more_text), tuple(shlex.split(given.options))
    study = Study(
        given.out, given.data, given.checkpoint, budgets, given.steps, text, more, options, given.test_sentences
    )
    study.check()
    report: dict[str, Any] = {"machine": machine_report(), "steps": given.steps, "rows": {}}
    base = study.out / "before"
    base.mkdir(exist_ok=True)
    report["rows"]["before"] = {"seeds": {"-": (found := study.scores(study.checkpoint, budgets, base))}, "mean": found}
    for seed in (int(number) for number in given.seeds.split(",")):
        for name in names:
            row = ROWS[name]
            if (row.translations and not text) or (row.more_text and not more):
                continue
            found = {}
            for checkpoint, heads in study.trained(name, row, seed):
                for test, by_heads in study.scores(checkpoint, heads, checkpoint.parent).items():
                    found.setdefault(test, {}).update(by_heads)
            entry = report["rows"].setdefault(name, {"seeds": {}})
            entry["seeds"][str(seed)] = found
            entry["mean"] = mean_scores(list(entry["seeds"].values()))
            write_report(given.report or study.out / "report.json", report)
    sys.stdout.write(table(report["rows"], budgets) + "\n")


if __name__ == "__main__":
    run_script(main)

"""Makes every number and figure of docs/heads.md: one training of each method on Multi30k, then the measurements.

    python -m experiments.heads.run                 # all stages
    python -m experiments.heads.run measure tables  # only the stages after the trainings

Run it at the top of a checkout where data/multi30k holds the corpus. Whatever exists already is not made again, and an
interrupted training continues from its last checkpoint, so the command can be repeated after a break. On two CPU cores
`train` takes about four hours, `methods` half an hour, `measure` ten minutes, `tables` seconds.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.heads import tables as report_tables

SHORT = ("--close-steps", "150", "--recover-steps", "100", "--precision", "bf16-mixed", "--eval-sentences", "200")
"""A short pruning, for comparisons between methods."""
SYSTEMS = {"baseline": "baseline", "Random-18": "random", "Impt-18": "important"}
"""Name in tables and figures → folder of the training."""
FIGURES = {
    "importance": "compare-importance/compare",
    "groups": "compare-groups/compare",
    "cumulative": "compare-cumulative/compare",
    "survivors": "survivors/survivors",
    "budgets": "budgets/budgets",
    "trajectory": "trajectory/trajectory",
}
"""Figure of the report → figure of an analysis, below the results folder."""


@dataclass(frozen=True)
class Study:
    """What is trained and measured, and the folders of inputs and results."""

    hmc: tuple[str, ...] = ("hmc",)
    """The command and its first arguments."""
    recipes: Path = Path("recipes")
    data: Path = Path("data/multi30k")
    runs: Path = Path("runs/heads")
    """Trainings of this study."""
    demo: Path = Path("runs/demo")
    """First training stage of the embedded model."""
    full: Path = Path("runs/demo-tuned")
    """Its second stage: the model that is pruned."""
    long: Path = Path("runs/demo-pruned")
    """Its longer pruning, with nested fine-tuning."""
    report: Path = Path("docs/heads.md")
    """The report. Its figures are in the folder of the same name."""
    seeds: tuple[int, ...] = (1, 2, 3)
    budgets: tuple[int, ...] = (120, 72, 36, 18, 10)
    curve_sentences: int = 300
    """Sentences of the test set for masking curves, which score 32 masks per model."""

    @property
    def out(self) -> Path:
        """Folder of JSON data, figures and bundles."""
        return self.runs / "report"

    def corpus(self, name: str) -> str:
        """A split of the corpus as `hmc` names parallel text."""
        return f"{self.data}/{name}.en.gz {self.data}/{name}.de.gz"

    def run(self, *arguments: object, makes: Path) -> None:
        """Runs `hmc` with arguments, unless `makes` exists. `makes` is what the command writes last."""
        if makes.exists():
            return
        command = [*self.hmc, *map(str, arguments)]
        sys.stdout.write(f"$ {shlex.join(command)}\n")
        sys.stdout.flush()
        subprocess.run(command, check=True)

    def prune(self, checkpoint: Path, out: Path, *options: object, makes: str) -> None:
        """Prunes a checkpoint on the corpus."""
        text = ("--data", self.corpus("train"), "--dev", self.corpus("val"), "--out", out)
        self.run("prune", checkpoint, *options, *text, makes=out / makes)

    def analyze(self, name: str, out: Path, *arguments: object) -> None:
        """Runs an analysis, which writes `NAME.json` last but for its figures."""
        self.run("analyze", name, *arguments, "--out", out, makes=out / f"{name}.json")

    def bundle(self, name: str, *arguments: object) -> None:
        """Compiles a bundle scored on the test set. It gets its name only when it is complete."""
        folder = self.out / "bundles" / name
        if folder.exists():
            return
        partial = folder.with_name(f"{name}.part")
        shutil.rmtree(partial, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        test = self.corpus("test_2016_flickr").split()
        self.run("compile", *arguments, "--eval", *test, "-o", partial, makes=partial)
        partial.replace(folder)


def train(study: Study) -> None:
    """HeadMask trainings, the embedded model, and its pruning."""
    runs, small, full = study.runs, study.recipes / "small.toml", study.full / "final"
    # Baseline, Random-N and Impt-N (Sun et al. 2021)
    study.run("train", small, "--out", runs / "baseline", makes=runs / "baseline/final")
    for folder, mask in (("random", "random:18"), ("important", "important:18")):
        study.run("train", small, "--headmask", mask, "--out", runs / folder, makes=runs / folder / "final")
    # The embedded model before pruning
    study.run("train", study.recipes / "demo.toml", "--out", study.demo, makes=study.demo / "final")
    study.run("train", study.recipes / "demo-tuned.toml", "--out", study.full, makes=full)
    # L0 gates to exact budgets (Voita et al. 2019, section 6), short, several seeds
    targets = ",".join(map(str, study.budgets))
    for seed in study.seeds:
        options = ("--target-heads", targets, *SHORT, "--seed", seed)
        study.prune(full, runs / f"seed{seed}", *options, makes=f"h{study.budgets[-1]}")
    # The same, longer, then nested fine-tuning: one set of weights for all budgets
    steps = ("--close-steps", 1000, "--recover-steps", 800, "--nested-steps", 2000, "--nested-levels", "one")
    rest = ("--eval-every", 2000, "--dropout", 0.15, "--precision", "bf16-mixed", "--eval-sentences", 400)
    study.prune(full, study.long, "--target-heads", "72,36", *steps, *rest, makes="nested")


def methods(study: Study) -> None:
    """One short example of each method that `train` does not have."""
    runs, baseline = study.runs, study.runs / "baseline/final"
    # Gates with λ on the encoder alone, the decoder frozen (Voita et al. 2019, section 6.2)
    encoder = ("--scope", "encoder_self", "--freeze", "decoder")
    study.prune(baseline, runs / "lambda", "--l0-lambda", 0.02, "--settle-gates", *encoder, *SHORT, makes="pruned")
    # A larger λ closes more heads (figure 8)
    for strength in (0.005, 0.02, 0.08):
        study.prune(
            baseline, runs / f"lam{strength}", "--l0-lambda", strength, "--settle-gates", *SHORT, makes="pruned"
        )
    # Trained with gates, and from scratch with the layout that the gates chose (Voita et al. 2019, table 2)
    study.prune(baseline, runs / "pruned", "--target-heads", 36, *SHORT, makes="h36")
    layout = ("--layout", runs / "pruned/h36")
    study.run("train", study.recipes / "small.toml", *layout, "--out", runs / "scratch", makes=runs / "scratch/final")
    checkpoints = {"full": baseline, "lambda": runs / "lambda/pruned", "pruned": runs / "pruned/h36"}
    study.bundle("scratch", *_named(checkpoints | {"scratch": runs / "scratch/final"}))
    study.analyze("budgets", study.out / "scratch", *_named({"methods": study.out / "bundles/scratch"}))


def measure(study: Study) -> None:
    """Importance, masking, scores and figures of everything that `train` made."""
    _measure_headmask(study)
    _measure_pruning(study)


def _measure_headmask(study: Study) -> None:
    """Importance on the dev set; groups of 18 heads and curves on the test set, ranked by that importance."""
    out, test = study.out, study.corpus("test_2016_flickr")
    for folder in SYSTEMS.values():
        checkpoint, scores = study.runs / folder / "final", out / folder / "importance.json"
        study.analyze("importance", out / folder, checkpoint, "--data", study.corpus("val"))
        options = ("--data", test, "--sentences", study.curve_sentences, "--scores", scores)
        study.analyze("groups", out / folder, checkpoint, *options)
        study.analyze("cumulative", out / folder, checkpoint, *options, "--groups", 16)
    for name in ("importance", "groups", "cumulative"):
        results = {system: out / folder / f"{name}.json" for system, folder in SYSTEMS.items()}
        study.analyze("compare", out / f"compare-{name}", *_named(results))
    study.bundle("headmask", *_named({system: study.runs / folder / "final" for system, folder in SYSTEMS.items()}))
    study.analyze("budgets", out / "headmask", *_named({"HeadMask": out / "bundles/headmask"}))


def _measure_pruning(study: Study) -> None:
    """The heads that L0 keeps, what they cost in BLEU, and the course of the gates."""
    out, full, long = study.out, study.full / "final", study.long
    pruned = {(seed, n): study.runs / f"seed{seed}/h{n}" for seed in study.seeds for n in study.budgets}
    course = {f"seed-{seed}": study.runs / f"seed{seed}/trajectory.json" for seed in study.seeds}
    study.analyze("importance", out / "full", full, "--data", study.corpus("val"), "--save", out / "ranked")
    study.analyze("survivors", out / "survivors", *pruned.values(), "--scores", out / "full/importance.json")
    study.analyze("trajectory", out / "trajectory", *_named(course))
    study.bundle("l0", *_named({"full": full} | {f"s{seed}-h{n}": path for (seed, n), path in pruned.items()}))
    study.bundle("long", *_named({"full": full, "h72": long / "h72", "h36": long / "h36"}))
    study.bundle("nested", long / "nested", "--target-heads", "144,72,36")
    study.bundle("ranked", out / "ranked", "--target-heads", ",".join(map(str, (144, *study.budgets))))
    series = {"L0": "l0", "L0-longer": "long", "nested": "nested", "by-importance": "ranked"}
    study.analyze("budgets", out / "budgets", *_named({name: out / "bundles" / b for name, b in series.items()}))


def tables(study: Study) -> None:
    """Copies the figures and writes the tables of the report."""
    figures = study.report.with_suffix("")
    figures.mkdir(parents=True, exist_ok=True)
    for name, figure in FIGURES.items():
        shutil.copyfile(study.out / f"{figure}.svg", figures / f"{name}.svg")
    if report_tables.write(study.out, study.report):
        raise SystemExit(1)


def _named(places: dict[str, Path]) -> list[str]:
    return [f"{name}={path}" for name, path in places.items()]


STAGES: dict[str, Callable[[Study], None]] = {
    "train": train, "methods": methods, "measure": measure, "tables": tables,
}  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    """Runs the stages named on the command line, in the order train, methods, measure, tables."""
    study = Study()
    parser = argparse.ArgumentParser(
        prog="python -m experiments.heads.run", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "stages", nargs="*", metavar="STAGE", help=f"stages to run, out of {', '.join(STAGES)}; default: all"
    )
    parser.add_argument("--hmc", default="hmc", help="command to run HMC with (default: hmc)")
    for name in ("recipes", "data", "runs", "demo", "full", "long", "report"):
        default = getattr(study, name)
        parser.add_argument(f"--{name}", type=Path, default=default, help=f"(default: {default})")
    for name in ("seeds", "budgets"):
        default = getattr(study, name)
        parser.add_argument(f"--{name}", type=int, nargs="+", default=default, help=f"(default: {default})")
    parser.add_argument(
        "--curve-sentences",
        type=int,
        default=study.curve_sentences,
        help="sentences of the test set for masking curves",
    )
    given = vars(parser.parse_args(arguments))
    stages = given.pop("stages") or list(STAGES)
    if unknown := [name for name in stages if name not in STAGES]:
        parser.error(f"unknown stage {unknown[0]}; choose from {', '.join(STAGES)}")
    given |= {
        "hmc": tuple(shlex.split(given["hmc"])),
        "seeds": tuple(given["seeds"]),
        "budgets": tuple(given["budgets"]),
    }
    study = Study(**given)
    for name, stage in STAGES.items():
        if name in stages:
            stage(study)


if __name__ == "__main__":
    main(sys.argv[1:])

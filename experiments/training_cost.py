"""What gates, HeadMask and importance add to a training step, and HMC's step against MarianMTModel's in plain PyTorch.

    python -m experiments.training_cost --recipe recipes/small.toml --out build/training-cost
        [--set section.key=value] [--rounds 7] [--steps 10] [--threads 1] [--precisions bf16-mixed,32-true]
        [--report FILE]

Variants, all of one model and its optimiser: `plain`; `gates` (hard concrete, sampled, with the L0 penalty); `random`
and `important` (HeadMask of `--masked` heads); `importance` (I_h over the same batches, without an update). Peers:
Transformers' MarianMTModel with `sdpa` and with `eager` attention in a plain loop, AdamW, same batches and precision.
Timed: padding, forward, backward, clipping, optimiser. Not timed: reading and tokenising the corpus, evaluation, logs.
HMC and Transformers run in a process each, which are driven in turn, never at once. A round runs `--steps` batches of
real text through every variant, in an order that rotates; the first round is not timed. A ratio is that of two times of
the same round, on the same batches; its median over rounds is reported with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import json
import statistics
from itertools import chain, islice
from pathlib import Path
from typing import Any

from experiments.support.script import machine_report, run_script, write_report
from experiments.support.worker import Worker

VARIANTS = ("plain", "gates", "random", "important", "importance")
ATTENTIONS = ("sdpa", "eager")
FULL = "32-true"
"""The precision of `hmc analyze importance`, which does not depend on that of training."""
Name = tuple[str, str]
"""(variant of HMC or attention of Transformers, precision)."""
Batches = list[tuple[list[list[int]], list[list[int]]]]


def prepare(recipe_path: Path, overrides: list[str], out: Path, number: int) -> tuple[dict[str, Any], Any, Batches]:
    """Architecture (JSON), training settings, and `number` batches of real text as token ids of both sides."""
    from hmc.training.data.batches import plan_epoch
    from hmc.training.runs.recipe import load_recipe
    from hmc.training.trainer.assemble import architecture, make_corpus, make_vocabulary

    recipe = load_recipe(recipe_path, overrides)
    out.mkdir(parents=True, exist_ok=True)
    vocabulary = make_vocabulary(recipe, out)
    corpus = make_corpus(recipe, vocabulary, out / "cache")
    settings = recipe.train
    epochs = (plan_epoch(corpus, settings.batch_tokens, settings.seed, epoch) for epoch in range(number))
    batches = [corpus.batch(rows) for rows in islice(chain.from_iterable(epochs), number)]
    return architecture(recipe, vocabulary).model_dump(), settings, batches


def measure(
    workers: dict[str, Worker], names: list[Name], batches: Batches, settings: Any, rounds: int
) -> tuple[dict[Name, list[float]], dict[Name, float]]:
    """Returns the seconds of each variant in each timed round, and its last loss (`importance`: its largest I_h)."""
    from hmc.training.runs.updater import learning_rate

    times: dict[Name, list[float]] = {name: [] for name in names}
    values: dict[Name, float] = {}
    steps = len(batches) // (rounds + 1)
    for turn in range(rounds + 1):
        first = turn * steps
        share = batches[first : first + steps]
        rates = [learning_rate(step + 1, settings) for step in range(first, first + steps)]
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            variant, precision = name
            worker = workers["transformers" if variant in ATTENTIONS else "hmc"]
            request = {"variant": variant, "precision": precision, "step": first + 1, "rates": rates, "batches": share}
            answered = worker.ask(request)
            values[name] = answered["value"]
            if turn:
                times[name].append(answered["seconds"])
    return times, values


def ratios(times: dict[Name, list[float]], precision: str) -> dict[str, tuple[float, float, float]]:
    """Time of each variant, and of the faster MarianMTModel, divided by that of `plain`: median, smallest, largest."""
    plain = times["plain", precision]
    tops = {f"{variant} / plain": variant for variant in VARIANTS[1:] if (variant, precision) in times}
    if precision != FULL and ("importance", FULL) in times:
        tops[f"importance at {FULL} / plain"] = FULL
    peers = [a for a in ATTENTIONS if (a, precision) in times]
    if peers:
        fastest = min(peers, key=lambda a: statistics.median(times[a, precision]))
        tops[f"MarianMTModel {fastest} / plain"] = fastest
    found = {}
    for title, top in tops.items():
        seconds = times["importance", FULL] if top == FULL else times[top, precision]
        each = [a / b for a, b in zip(seconds, plain, strict=True)]
        found[title] = (statistics.median(each), min(each), max(each))
    return found


def report_of(
    times: dict[Name, list[float]], values: dict[Name, float], tokens: list[int], steps: int
) -> dict[str, Any]:
    """Prints a table for each precision and returns them. tokens: number of target tokens in each timed round."""
    report: dict[str, Any] = {}
    for precision in dict.fromkeys(p for _, p in times):
        print(f"\n{precision}: milliseconds a step, target tokens a second, last loss (importance: largest I_h)")
        rows = {}
        for (variant, own), seconds in times.items():
            if own == precision:
                rate = statistics.median(n / s for n, s in zip(tokens, seconds, strict=True))
                name = f"MarianMTModel {variant}" if variant in ATTENTIONS else variant
                rows[name] = {
                    "milliseconds": statistics.median(seconds) / steps * 1000,
                    "tokens_per_second": rate,
                    "seconds": seconds,
                    "last": values[variant, own],
                }
                print(f"  {name:24} {rows[name]['milliseconds']:9.1f} {rate:9.0f} {values[variant, own]:9.3f}")
        compared = ratios(times, precision)
        for title, (middle, low, high) in compared.items():
            print(f"  {title:32} {middle:6.3f}  ({low:.3f} to {high:.3f})")
        report[precision] = {"variants": rows, "time_ratios": compared}
    return report


def main() -> None:
    """Parses arguments, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=Path("recipes/small.toml"))
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="SECTION.KEY=VALUE")
    parser.add_argument("--out", type=Path, required=True, help="folder for vocabulary and corpus; kept between runs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10, help="timed batches in each round")
    parser.add_argument("--masked", type=int, default=18, help="heads that HeadMask masks")
    parser.add_argument("--threads", type=int, default=0, help="threads of each process; 0: PyTorch's default")
    parser.add_argument("--precisions", default="bf16-mixed,32-true")
    parser.add_argument(
        "--variants",
        default=",".join((*VARIANTS, *ATTENTIONS)),
        help="variants to run, separated by commas; plain always runs",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--report", type=Path, help="write the results to this file, as JSON")
    options = parser.parse_args()
    chosen = list(dict.fromkeys(["plain", *(v for v in options.variants.split(",") if v)]))
    if unknown := set(chosen) - {*VARIANTS, *ATTENTIONS}:
        parser.error(f"--variants {', '.join(sorted(unknown))}: choose of {', '.join((*VARIANTS, *ATTENTIONS))}")
    print(__doc__)
    total = options.steps * (options.rounds + 1)
    arch, settings, batches = prepare(options.recipe, options.overrides, options.out, total)
    names = [(variant, precision) for precision in options.precisions.split(",") for variant in chosen]
    own = {"recipe": str(options.recipe), "overrides": options.overrides, "out": str(options.out)}
    given = {
        "hmc": ("experiments.peers.hmc_training_worker", own | {"device": options.device, "masked": options.masked}),
        "transformers": (
            "experiments.peers.marian_training_worker",
            {"architecture": arch, "train": settings.model_dump(), "device": options.device},
        ),
    }
    if not set(chosen) & set(ATTENTIONS):
        del given["transformers"]
    report: dict[str, Any] = {"machine": machine_report([options.device]), "architecture": arch, "steps": options.steps}
    workers: dict[str, Worker] = {}
    try:
        for name, (module, argument) in given.items():
            workers[name] = Worker(module, [json.dumps(argument)], threads=options.threads)
            print(f"{name}: {workers[name].about}")
        report["processes"] = {name: worker.about for name, worker in workers.items()}
        times, values = measure(workers, names, batches, settings, options.rounds)
    finally:
        for worker in workers.values():
            worker.close()
    each = [sum(len(row) for row in target) for _, target in batches]
    tokens = [sum(each[n * options.steps : (n + 1) * options.steps]) for n in range(1, options.rounds + 1)]
    report["precisions"] = report_of(times, values, tokens, options.steps)
    write_report(options.report, report)


if __name__ == "__main__":
    run_script(main)

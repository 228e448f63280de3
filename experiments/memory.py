"""Memory of one level and of four nested ones, with and without shared packed weights; growth over many translations.

    python -m experiments.memory --out build/memory [--heads 144,108,72,36] [--models base,demo]
        [--precisions int8,int4,fp32] [--translations 10000] [--report FILE]

`base` is Transformer-base (6+6, 512/2048/8, V = 16 000) with random weights, `demo` the embedded model. Every number is
of a fresh process that opens the levels as a server does, one after the other, warms them up, and translates the same 8
sentences (beam 4) at each. Bytes are the proportional set size (PSS) of the whole process, Python and ONNX Runtime
included: `loaded`, when every level is warm; `used`, right after the last translation; `idle`, 7 seconds later. "Above
imports" leaves out what the process had before it opened anything.
Seconds are those of opening (graphs read, weights verified, sessions made; no warm-up): the first time, which packs and
writes weights; later, from the cache; without the cache. The check of the bundle, done once, is left out.

Growth: a process translates 1 000 sentences of the demo's test set at its int8 levels in turn, in requests of 32, then
the rest of `--translations` in three parts; PSS and its anonymous part are read 7 seconds after each. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hmc.artifact.bundle.checks import validate
from hmc.artifact.precisions import Precision
from hmc.engine.requests.options import DecodeOptions
from hmc.engine.runtime.process_memory import limit_heaps
from hmc.serving.levels.memory import byte_shares
from hmc.serving.translator import Translator

DEMO = Path(__file__).resolve().parents[1] / "cli/hmc/cli/demo_data"
MEBIBYTE = 2**20
PRECISIONS: tuple[Precision, ...] = ("int8", "int4", "fp32")
SENTENCES, BATCH, SETTLE, PARTS, IDLE_SECONDS = 8, 32, 1000, 3, 7


@dataclass(frozen=True)
class Task:
    """The work of a fresh process. cache: a folder, or `none`."""

    bundle: str
    levels: tuple[str, ...]
    cache: str
    texts: tuple[str, ...]
    max_length: int | None = None
    translations: int = 0


def pss() -> dict[str, int]:
    """Proportional set size of this process, in bytes: `all` of it, and the `anonymous` part."""
    lines = [line.split() for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()]
    sizes = {parts[0]: int(parts[1]) * 1024 for parts in lines if parts[0].startswith("Pss")}
    return {"all": sizes["Pss:"], "anonymous": sizes["Pss_Anon:"]}


def work(task: Task) -> dict[str, Any]:
    """Does this work in the present process, which must be fresh."""
    limit_heaps()  # as `hmc serve` does
    manifest = validate(task.bundle)
    found: dict[str, Any] = {"imports": pss(), "open_s": {}}
    opened: list[Translator] = []
    for level in task.levels:
        began = time.perf_counter()
        opened.append(Translator(task.bundle, level, device="cpu", manifest=manifest, cache=task.cache))
        found["open_s"][level] = time.perf_counter() - began
        opened[-1].warm_up()
    found["loaded"] = pss()
    for translator in opened:
        translator.translate(task.texts[:SENTENCES], DecodeOptions(max_length=task.max_length), segmentation="none")
    found["used"] = pss()
    time.sleep(IDLE_SECONDS)
    found["idle"] = pss()
    bytes_of = byte_shares({level: t.weights for level, t in zip(task.levels, opened, strict=True)})
    found["weights"] = {level: asdict(bytes_) for level, bytes_ in bytes_of.items()}
    if task.translations:
        part = (task.translations - SETTLE) // PARTS
        counts = [SETTLE, *[part] * (PARTS - 1), task.translations - SETTLE - part * (PARTS - 1)]
        found["growth"] = [_translate(opened, task.texts, count) for count in counts]
    for translator in opened:
        translator.close()
    return found


def _translate(opened: list[Translator], texts: tuple[str, ...], count: int) -> dict[str, int]:
    for start in range(0, count, BATCH):
        batch = [texts[(start + i) % len(texts)] for i in range(min(BATCH, count - start))]
        opened[start // BATCH % len(opened)].translate(batch, segmentation="none")
    time.sleep(IDLE_SECONDS)
    return pss()


def fresh(task: Task) -> dict[str, Any]:
    """Does this work in a new process."""
    command = [sys.executable, "-m", "experiments.memory", "--out", "-", "--child"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ran = subprocess.run(
        command, input=json.dumps(asdict(task)), capture_output=True, text=True, check=False, env=environment
    )
    if ran.returncode:
        raise SystemExit(ran.stderr)
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


def prepare(out: Path, model: str, heads: list[int]) -> Path:
    """The model's bundle with these levels in every precision, compiled if it is not there yet."""
    from experiments.support.random_checkpoint import random_sentences, sized_checkpoint
    from hmc.compiler.bundle.requests import LevelRequest
    from hmc.compiler.bundle.writer import compile_bundle

    bundle = out / f"{model}-{'-'.join(map(str, heads))}"
    if not bundle.is_dir():
        checkpoint, sentences = DEMO / "checkpoint", read_sentences("calibration.en")
        if model == "base":
            checkpoint, sentences = out / "checkpoint", random_sentences(32)
            if not checkpoint.is_dir():
                sized_checkpoint(checkpoint)
        requests = [LevelRequest(checkpoint, n) for n in heads]
        compile_bundle(requests, bundle, precisions=PRECISIONS, calibration=sentences)
    return bundle


def read_sentences(name: str) -> list[str]:
    """Lines of a file of the embedded model."""
    return (DEMO / name).read_text(encoding="utf-8").splitlines()


def measure(
    bundle: Path, precision: str, texts: tuple[str, ...], max_length: int | None, cache: Path
) -> dict[str, Any]:
    """Measures one level, then all levels: with an empty cache, with a filled cache, without a cache."""
    levels = tuple(level.name for level in validate(bundle).levels if level.precision == precision)
    found: dict[str, Any] = {"levels": levels}
    for count, names in (("one", levels[:1]), ("all", levels)):
        shutil.rmtree(cache, ignore_errors=True)
        for state, folder in (("first", str(cache)), ("shared", str(cache)), ("apart", "none")):
            found[f"{count} {state}"] = fresh(Task(str(bundle), names, folder, texts, max_length))
    return found


def show(model: str, precision: str, found: dict[str, Any]) -> None:
    """Prints one model's table at one precision."""
    levels = found["levels"]
    print(f"\n{model} {precision}: {', '.join(levels)}")
    print(f"  {'MiB of PSS':38} {levels[0]:>12} {'all':>8} {'ratio':>6}   above imports")
    for kind, label in (("apart", "weights of their own"), ("shared", "shared packed weights")):
        one, many = found[f"one {kind}"], found[f"all {kind}"]
        for state in ("loaded", "used", "idle"):
            a, b = one[state]["all"], many[state]["all"]
            above = b - many["imports"]["all"], a - one["imports"]["all"]
            sizes = f"{a / MEBIBYTE:12.1f} {b / MEBIBYTE:8.1f} {b / a:6.2f}"
            print(f"  {label + ', ' + state:38} {sizes}   {above[0] / above[1]:13.2f}")
    for level, bytes_of in found["all shared"]["weights"].items():
        own, shared = (bytes_of[kind] / MEBIBYTE for kind in ("own", "shared"))
        print(f"  {level:12} holds {own:6.1f} of its own, {shared:6.1f} shared")
    for state, label in (("first", "packed now"), ("shared", "from the cache"), ("apart", "without it")):
        seconds = " ".join(f"{s:.2f}" for s in found[f"all {state}"]["open_s"].values())
        print(f"  seconds to open, {label:14} {seconds}")


def main() -> None:
    """Parses arguments, measures, prints tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for models and cache; kept between runs")
    parser.add_argument("--heads", default="144,108,72,36", help="open heads of each level, most first")
    parser.add_argument("--models", default="base,demo", help="base, demo or both")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument(
        "--translations",
        type=int,
        default=10_000,
        help=f"translations in all to measure growth, more than {SETTLE}; 0: do not measure growth",
    )
    parser.add_argument("--report", type=Path, help="write the results to this file, as JSON")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        given = json.load(sys.stdin)
        print(json.dumps(work(Task(**given | {k: tuple(given[k]) for k in ("levels", "texts")}))))
        return
    from experiments.support.random_checkpoint import random_sentences
    from hmc.benchmark.measure.machine import this_machine

    print(__doc__)
    machine, heads = this_machine(["cpu"]), [int(n) for n in options.heads.split(",")]
    print(machine)
    report: dict[str, Any] = {"machine": str(machine), "heads": heads}
    demo_texts = tuple(read_sentences("test.en"))
    for model in options.models.split(","):
        bundle = prepare(options.out, model, heads)
        texts, length = (tuple(random_sentences(SENTENCES)), 25) if model == "base" else (demo_texts, None)
        for precision in options.precisions.split(","):
            found = measure(bundle, precision, texts, length, options.out / "cache")
            show(model, precision, found)
            report[f"{model} {precision}"] = found
    if options.translations > SETTLE:
        bundle = prepare(options.out, "demo", heads)
        names = tuple(level.name for level in validate(bundle).levels if level.precision == "int8")
        task = Task(str(bundle), names, str(options.out / "cache"), demo_texts, translations=options.translations)
        found = report["growth"] = fresh(task)
        first, *later = found["growth"]
        print(f"\nGrowth from {SETTLE} to {options.translations} translations at {len(names)} levels, in bytes of PSS:")
        for kind in ("all", "anonymous"):
            steps = ", ".join(f"{part[kind] - first[kind]:+,}" for part in later)
            print(f"  {kind:10} {first[kind]:,} at first; after each of {PARTS} parts: {steps}")
    if options.report:
        options.report.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

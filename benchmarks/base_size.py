"""HMC against CTranslate2 on the same weights: Transformer-base (6+6, 512/2048/8, V = 16 000), interleaved in one run.

    python benchmarks/base_size.py --out build/base-size [--settings 1x1,32x1,32x4,64x4] [--rounds 7] [--json FILE]

Timed: encoding and decoding of token ids, all of it, in both engines. Not timed: loading, tokenisation, detokenisation.
Weights are random; both engines are made to write exactly `--target` tokens, so both do the same work. Each round runs
every system once, in an order that rotates; a ratio is that of two times of the same round, and the median over rounds
is reported with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import ctranslate2
import numpy as np
from ctranslate2_model import write_ctranslate2
from random_checkpoint import base_size_checkpoint, random_sentences

from hmc.artifact.bundle import validate
from hmc.artifact.checkpoint import load_checkpoint
from hmc.benchmark.machine import this_machine
from hmc.compiler.bundle_writer import LevelRequest, compile_bundle
from hmc.serving.engine import Engine
from hmc.serving.options import DecodeOptions
from hmc.serving.sessions import LevelSessions, resolve_device

Ids = list[list[int]]
Run = Callable[[Ids, int], int]
QUARTER = 36
CT2_THREADS = {"2 threads": (1, 2), "2 workers": (2, 1)}
"""(inter_threads, intra_threads) tried for CTranslate2; the faster one of each setting is the one compared."""


def ours(bundle: Path, level: str, target: int) -> Run:
    """Translates with one level of a bundle."""
    manifest = validate(bundle)
    chosen = manifest.level(level)
    sessions = LevelSessions.open(bundle, manifest.architecture, chosen, resolve_device("cpu", chosen), 0)
    engine = Engine(sessions, queue_size=4096, max_rows=256)

    def run(sources: Ids, beam: int) -> int:
        options = DecodeOptions(beam_size=beam, min_length=target, max_length=target)
        futures = [engine.submit(ids, options, block=True) for ids in sources]
        return sum(len(f.result().hypotheses[0].ids) for f in futures)

    return run


def theirs(model: Path, pieces: list[str], target: int, threads: tuple[int, int], compute: str) -> Run:
    """Translates with CTranslate2."""
    translator = ctranslate2.Translator(
        str(model), device="cpu", inter_threads=threads[0], intra_threads=threads[1], compute_type=compute
    )

    def run(sources: Ids, beam: int) -> int:
        tokens = [[pieces[i] for i in ids] for ids in sources]
        results = translator.translate_batch(
            tokens, beam_size=beam, min_decoding_length=target, max_decoding_length=target,
            max_batch_size=-(-len(tokens) // threads[0]),
        )  # fmt: skip
        return sum(len(r.hypotheses[0]) for r in results)

    return run


def prepare(out: Path, target: int) -> dict[str, Run]:
    """Builds what is missing under `out` and loads every system."""
    if not (out / "checkpoint").is_dir():
        base_size_checkpoint(out / "checkpoint")
    checkpoint = load_checkpoint(out / "checkpoint")
    pieces = [f"w{i}" for i in range(checkpoint.architecture.vocab_size)]
    pieces[checkpoint.architecture.eos_id] = "</s>"
    if not (out / "bundle").is_dir():
        began = time.monotonic()
        requests = [LevelRequest(out / "checkpoint", n) for n in (None, QUARTER)]
        compile_bundle(requests, out / "bundle", precisions=("int8", "fp32"), calibration=random_sentences(32))
        print(f"compiled two budgets at two precisions in {time.monotonic() - began:.1f} s")
    for name, quantization in (("ct2-int8", "int8"), ("ct2-fp32", None)):
        if not (out / name).is_dir():
            write_ctranslate2(checkpoint, pieces, out / name, quantization)
    names = [level.name for level in validate(out / "bundle").levels]
    systems = {f"hmc {name}": ours(out / "bundle", name, target) for name in names}
    for threads, pair in CT2_THREADS.items():
        systems[f"ct2 int8 {threads}"] = theirs(out / "ct2-int8", pieces, target, pair, "int8")
        systems[f"ct2 fp32 {threads}"] = theirs(out / "ct2-fp32", pieces, target, pair, "float32")
    return systems


def measure(systems: dict[str, Run], sources: Ids, beam: int, rounds: int) -> dict[str, list[float]]:
    """Seconds per system and round, after one untimed round."""
    names, times = list(systems), {name: [] for name in systems}
    for turn in range(rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            began = time.perf_counter()
            systems[name](sources, beam)
            if turn:
                times[name].append(time.perf_counter() - began)
    return times


def ratios(times: dict[str, list[float]], precision: str) -> dict[str, tuple[float, float, float]]:
    """CTranslate2's time at its better setting over ours: median, smallest, largest over rounds."""
    rivals = [n for n in times if n.startswith(f"ct2 {precision}")]
    rival = min(rivals, key=lambda n: statistics.median(times[n]))
    found = {}
    for name, seconds in times.items():
        if name.startswith("hmc") and name.endswith("int8") == (precision == "int8"):
            each = [rival_s / own_s for rival_s, own_s in zip(times[rival], seconds, strict=True)]
            found[f"{name} against {rival}"] = (statistics.median(each), min(each), max(each))
    return found


def main() -> None:
    """Parses arguments, measures, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the models; kept between runs")
    parser.add_argument("--settings", default="1x1,32x1,32x4,64x4", help="batch x beam, with commas")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--source", type=int, default=24, help="source tokens, EOS included")
    parser.add_argument("--target", type=int, default=25, help="target tokens, EOS included")
    parser.add_argument("--only", default="", help="precision to time: int8, fp32 or both when left out")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(__doc__)
    systems = {n: run for n, run in prepare(options.out, options.target).items() if _is(n, options.only)}
    machine = this_machine(["cpu"])
    print(machine)
    report = {"machine": str(machine), "settings": {}}
    rng = np.random.default_rng(1)
    for setting in options.settings.split(","):
        batch, beam = (int(part) for part in setting.split("x"))
        sources = [[*rng.integers(3, 16000, options.source - 1).tolist(), 0] for _ in range(batch)]
        times = measure(systems, sources, beam, options.rounds)
        table = {name: statistics.median(seconds) * 1000 for name, seconds in times.items()}
        print(f"\nbatch {batch}, beam {beam} (milliseconds a batch, median of {options.rounds})")
        for name, milliseconds in table.items():
            print(f"  {name:24} {milliseconds:9.1f}")
        compared = {}
        for precision in ("int8", "fp32"):
            if _is(f" {precision}", options.only):
                compared |= ratios(times, precision)
        for name, (middle, low, high) in compared.items():
            print(f"  {name:48} {middle:5.2f}x  ({low:.2f} to {high:.2f})")
        report["settings"][setting] = {"milliseconds": table, "ratios": compared}
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))


def _is(name: str, only: str) -> bool:
    return not only or ("int8" in name) == (only == "int8")


if __name__ == "__main__":
    main()

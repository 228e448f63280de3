"""Speed of HMC against other engines with the same weights, at usual sizes of models (`SIZES`).

    python -m experiments.sizes --out build/sizes [--sizes tiny,demo,deep,base] [--settings 1x1,8x1,32x1,1x4,32x4]
        [--rounds 7] [--report FILE] [--peers ctranslate2,transformers,optimum] [--optimum-python INTERPRETER]
        [--text SRC TGT]

Timed: encoding and decoding of token ids. Not timed: loading, tokenisation, detokenisation. Batch 1 is timed as the
mean over `--stream` sentences, each sent when the one before is answered: a single call after a pause would measure
cold caches. Weights are random, and every engine writes exactly `--target` tokens, so all do the same work. Each round
runs every system once, in an order that rotates, with a pause before each, so that spinning threads of one system do
not slow the next. A ratio is computed from two times of the same round; its median over the rounds is reported with the
smallest and the largest. CTranslate2 runs at fp32 and int8 and is compared with HMC at the same precision (int4 with
its int8). HMC runs each level with one thread per core, and with one single-threaded worker per core, as CTranslate2
does; the last table has the faster of both. Transformers (`generate`, PyTorch) and Optimum (`ORTModelForSeq2SeqLM`)
run at fp32 in processes of their own
and are compared with HMC at both precisions.

With --text (parallel text) the sentences and the vocabulary are real. Then HMC also runs levels with vocabulary
shortlists, and CTranslate2 with a vocabulary map (`use_vmap`) of the same lexicon. Both are learned from that text,
except for the lines that are translated.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from experiments.peers.engines import CORES, CT2_DEFAULTS, PEERS, Ids, Run, ctranslate2_peers, generate_peers
from experiments.support.bitext import Bitext
from experiments.support.random_checkpoint import SIZES, random_sentences, sized_checkpoint
from experiments.support.script import machine_report, run_script, write_report
from hmc.artifact.bundle.checks import validate
from hmc.artifact.bundle.shortlist import Lexicon
from hmc.artifact.checkpoint.checkpoint import Checkpoint, load_checkpoint
from hmc.compiler.bundle.requests import LevelRequest
from hmc.compiler.bundle.writer import compile_bundle
from hmc.engine.native import library
from hmc.engine.requests.options import MAX_TOKENS, DecodeOptions
from hmc.engine.runtime.device import resolve_device
from hmc.engine.runtime.programs import ProgramSessions
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling.engine import Engine
from hmc.engine.support import executor_of

REFERENCE = "hmc full"
"""The system whose tokens every other system is compared with, if it runs."""


def ours(
    bundle: Path, level: str, target: int | None, workers: int = 1, cache: Path | None = None, device: str = "cpu",
    rows: int = 256,
) -> Run:  # fmt: skip
    """Translates with one level of a bundle.

    target: number of tokens to write; None: until the model ends. workers: one with a thread for each core, or several
    with one thread each. rows: decoded together.
    """
    manifest = validate(bundle)
    chosen = manifest.level(level)
    found = resolve_device(device, chosen)
    executor = executor_of(chosen, "auto", cpu=found.kind == "cpu", native=library.best() is not None)
    sessions: LevelSessions
    if executor == "onnxruntime":
        sessions = LevelSessions.open(bundle, manifest.architecture, chosen, found, 0, cache, workers)
    else:
        threads = 0 if workers == 1 else 1
        sessions = ProgramSessions.open_program(
            bundle, manifest.architecture, chosen, manifest.digests, executor, threads
        )
    tokens = max(MAX_TOKENS, rows * (target or 0))
    engine = Engine(sessions, queue_size=4096, max_rows=rows, max_tokens=tokens, workers=workers)
    eos = manifest.architecture.eos_id

    def run(sources: Ids, beam: int) -> Ids:
        options = DecodeOptions(beam_size=beam, min_length=target or 1, max_length=target)
        futures = [engine.submit(ids, options, block=True) for ids in sources]
        found = [f.result().hypotheses[0] for f in futures]
        return [[*h.ids, eos] if h.complete else list(h.ids) for h in found]

    return run


def prepare(
    out: Path, size: str, target: int, peers: list[str], pythons: dict[str, str], bitext: Bitext | None
) -> tuple[Checkpoint, dict[str, Run]]:
    """Builds what is missing under `out` and loads every system."""
    if not (out / "checkpoint").is_dir():
        sized_checkpoint(out / "checkpoint", size, text=[*bitext.sources, *bitext.targets] if bitext else [])
    checkpoint = load_checkpoint(out / "checkpoint")
    if not (out / "bundle").is_dir():
        began = time.monotonic()
        requests = [LevelRequest(out / "checkpoint", n) for n in (None, checkpoint.layout.total // 4)]
        compile_bundle(
            requests, out / "bundle", precisions=("int8", "int4", "fp32"),
            calibration=bitext.sources[:32] if bitext else random_sentences(32),
            shortlist=bitext.shortlist if bitext else None,
        )  # fmt: skip
        print(f"compiled two budgets at three precisions in {time.monotonic() - began:.1f} s")
    systems = {}
    for level in validate(out / "bundle").levels:
        for workers in (1,) if level.precision == "int4" else sorted({1, CORES}):  # 4-bit weights are for one sentence
            name = f"hmc {level.name}" + (f" {workers} workers" if workers > 1 else "")
            systems[name] = ours(out / "bundle", level.name, target, workers, out / "cache")
    if "ctranslate2" in peers:
        lexica = [out / "bundle" / level.shortlist for level in validate(out / "bundle").levels if level.shortlist]
        lexicon = Lexicon.load(lexica[0], checkpoint.architecture) if lexica else None
        systems |= ctranslate2_peers(checkpoint, out, target, lexicon)
    systems |= generate_peers(checkpoint, out, target, [p for p in peers if p != "ctranslate2"], pythons)
    return checkpoint, systems


def measure(
    systems: dict[str, Run], batches: list[Ids], beam: int, rounds: int, pause: float
) -> tuple[dict[str, list[float]], dict[str, Ids]]:
    """Seconds per batch of each system and round; and what each system wrote in the untimed round before."""
    names, written = list(systems), {}
    times: dict[str, list[float]] = {name: [] for name in systems}
    for turn in range(rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            time.sleep(pause)
            began = time.perf_counter()
            found = [systems[name](batch, beam) for batch in batches]
            if turn:
                times[name].append((time.perf_counter() - began) / len(batches))
            else:
                written[name] = [ids for batch in found for ids in batch]
    return times, written


def agreement(written: dict[str, Ids], target: int) -> dict[str, float]:
    """Share of sentences whose tokens are the reference's, per system; the last token of a forced length may differ.

    Raises RuntimeError when a system wrote other lengths than were asked for.
    """
    for name, found in written.items():
        if lengths := {len(ids) for ids in found} - {target}:
            raise RuntimeError(f"{name} wrote {sorted(lengths)} tokens, not {target}: it did other work")
    reference = written.get(REFERENCE, next(iter(written.values())))
    return {
        name: statistics.mean(a[:-1] == b[:-1] for a, b in zip(found, reference, strict=True))
        for name, found in written.items()
    }


def ratios(times: dict[str, list[float]]) -> dict[str, tuple[float, float, float]]:
    """The time of each peer at its faster setting, divided by ours: median, smallest and largest over the rounds.

    If the faster setting of CTranslate2 is not its default, the ratios to its default are there too.
    """
    groups: dict[str, list[str]] = {}
    for name in times:
        if not name.startswith("hmc"):
            groups.setdefault(" ".join(name.split()[:2]), []).append(name)
    found = {}
    for group, members in groups.items():
        better = min(members, key=lambda n: statistics.median(times[n]))
        for rival in [better, *(n for n in members if n != better and n.endswith(CT2_DEFAULTS))]:
            for name, seconds in times.items():
                same_precision = not group.startswith("ct2") or _int8(name) == _int8(group)
                if name.startswith("hmc") and same_precision and (rival == better or not name.endswith(" workers")):
                    each = [rival_s / own_s for rival_s, own_s in zip(times[rival], seconds, strict=True)]
                    found[f"{name} against {rival}"] = (statistics.median(each), min(each), max(each))
    return found


def best(compared: dict[str, tuple[float, float, float]], systems: Iterable[str]) -> dict[str, float]:
    """Level of HMC → the median ratio of its faster setting to CTranslate2's faster one, at the same precision."""
    found: dict[str, float] = {}
    for own in systems:
        against = [
            middle
            for name, (middle, _, _) in compared.items()
            if name.startswith(f"{own} against ct2") and "vmap" not in name
        ]
        if against:  # the least of them is that to the faster setting
            level = own.split()[1]
            found[level] = max(found.get(level, 0.0), min(against))
    return found


def measure_size(size: str, options: argparse.Namespace, bitext: Bitext | None) -> dict[str, Any]:
    """Measures the systems of one size at every setting; prints the tables and returns them."""
    pythons = {"optimum": options.optimum_python} if options.optimum_python else {}
    checkpoint, systems = prepare(options.out / size, size, options.target, options.peers, pythons, bitext)
    systems = {n: run for n, run in systems.items() if _wanted(n, options.only)}
    if options.systems:
        parts = options.systems.split(",")
        systems = {n: run for n, run in systems.items() if not n.startswith("hmc") or any(p in n for p in parts)}
    arch, rng, report = checkpoint.architecture, np.random.default_rng(1), dict[str, Any]()
    for setting in options.settings.split(","):
        batch, beam = (int(part) for part in setting.split("x"))
        count = options.stream if batch == 1 else batch
        sources = [[*rng.integers(3, arch.vocab_size, options.source - 1).tolist(), arch.eos_id] for _ in range(count)]
        if bitext:
            sources = bitext.sentences(checkpoint, count, options.source)
        batches = [sources[start : start + batch] for start in range(0, count, batch)]
        times, written = measure(systems, batches, beam, options.rounds, options.pause)
        table = {name: statistics.median(seconds) * 1000 for name, seconds in times.items()}
        agreed, compared = agreement(written, options.target), ratios(times)
        print(f"\n{size}: batch {batch}, beam {beam} (milliseconds a batch, median of {options.rounds}; same tokens)")
        for name, milliseconds in table.items():
            print(f"  {name:30} {milliseconds:9.2f} {agreed[name]:7.0%}")
        for name, (middle, low, high) in compared.items():
            print(f"  {name:60} {middle:5.2f}x  ({low:.2f} to {high:.2f})")
        report[setting] = {"milliseconds": table, "agreement": agreed, "ratios": compared}
    return report


def print_summary(report: dict[str, Any]) -> None:
    """A row for each size and level, a column for each setting."""
    for size, settings in report.items():
        rows = {setting: best(found["ratios"], found["milliseconds"]) for setting, found in settings.items()}
        print(f"\n{size}: times as fast as CTranslate2 at the same precision, each at its faster setting")
        for level in next(iter(rows.values())):
            print(f"  {level:20}" + "".join(f"{setting:>6} {row[level]:5.2f}" for setting, row in rows.items()))


def main() -> None:
    """Parses arguments, measures, prints tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the models; kept between runs")
    parser.add_argument("--sizes", default=",".join(SIZES), help="sizes, separated by commas; default: all")
    parser.add_argument("--settings", default="1x1,8x1,32x1,1x4,32x4", help="settings BATCHxBEAM, separated by commas")
    parser.add_argument("--rounds", type=int, default=7, help="rounds; each runs every system once")
    parser.add_argument("--stream", type=int, default=8, help="at batch 1: sentences sent one after the other")
    parser.add_argument("--source", type=int, default=24, help="tokens of each source, EOS included")
    parser.add_argument("--target", type=int, default=25, help="tokens of each translation, EOS included")
    parser.add_argument("--systems", default="", help="run only systems of HMC whose name contains one of these")
    parser.add_argument(
        "--only", default="", help="int8 or fp32: the one precision of HMC and CTranslate2; default: both"
    )
    parser.add_argument(
        "--peers", default="ctranslate2", help=f"engines to compare with, separated by commas: {', '.join(PEERS)}"
    )
    parser.add_argument("--optimum-python", help="Python of an environment with optimum[onnxruntime]")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds to wait before each run")
    parser.add_argument(
        "--text", type=Path, nargs=2, metavar=("SRC", "TGT"), help="parallel text to translate; default: made-up words"
    )
    parser.add_argument("--report", type=Path, help="write the results to this file, as JSON")
    options = parser.parse_args()
    options.peers = [peer for peer in options.peers.split(",") if peer]
    if unknown := set(options.peers) - set(PEERS):
        parser.error(f"--peers {', '.join(sorted(unknown))}: choose of {', '.join(PEERS)}")
    sizes = options.sizes.split(",")
    if unknown := set(sizes) - set(SIZES):
        parser.error(f"--sizes {', '.join(sorted(unknown))}: choose of {', '.join(SIZES)}")
    print(__doc__)
    bitext = Bitext.read(*options.text) if options.text else None
    report = {size: measure_size(size, options, bitext) for size in sizes}
    print_summary(report)
    write_report(options.report, {"machine": machine_report(), "sizes": report})


def _int8(name: str) -> bool:
    return "int8" in name or "int4" in name


def _wanted(name: str, only: str) -> bool:
    """Whether a system runs: with `only`, the other precision of HMC and CTranslate2 does not."""
    return not only or not name.startswith(("hmc", "ct2")) or _int8(name) == (only == "int8")


if __name__ == "__main__":
    run_script(main)

"""HMC against other engines on the same weights: Transformer-base (6+6, 512/2048/8, V = 16 000), interleaved.

    python benchmarks/base_size.py --out build/base-size [--settings 1x1,32x1,32x4,64x4] [--rounds 7] [--json FILE]
        [--peers ctranslate2,transformers,optimum] [--optimum-python INTERPRETER] [--text SRC TGT]

Timed: encoding and decoding of token ids, all of it, in every engine. Not timed: loading, tokenisation, detokenisation.
One sentence is timed as a stream of `--stream` sentences, each sent when the one before is answered, and the mean is
taken: a lone call after a pause tells how cold the caches are. Weights are random; every engine is made to write
exactly `--target` tokens, so all do the same work. Each round runs every system once, in an order that rotates, with a
pause between, so that threads of one that still spin do not slow the next; a ratio is that of two times of the same
round, and the median over rounds is reported with the smallest and the largest. CTranslate2 runs at fp32 and int8 and
meets HMC at the same one, int4 at int8. HMC runs a level with a thread per core, and with a worker of one thread per
core, as CTranslate2 does. Transformers (`generate`, PyTorch) and Optimum (`ORTModelForSeq2SeqLM`) run at fp32 in
processes of their own, and meet HMC at both.

With --text, parallel text, sentences are real ones and so is the vocabulary; then HMC also runs levels with vocabulary
shortlists, and CTranslate2 with a vocabulary map (`use_vmap`) of the same lexicon. Both are learnt from that text, less
the lines that are translated.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from bitext import Bitext
from peers import CORES, CT2_DEFAULTS, PEERS, Ids, Run, ctranslate2_peers, generate_peers
from random_checkpoint import base_size_checkpoint, random_sentences
from scripts import machine_report, run_script, write_report

from hmc.artifact.bundle_checks import validate
from hmc.artifact.checkpoint import Checkpoint, load_checkpoint
from hmc.artifact.shortlist import Lexicon
from hmc.compiler.bundle_builder import LevelRequest
from hmc.compiler.bundle_writer import compile_bundle
from hmc.serving.engine import Engine
from hmc.serving.options import DecodeOptions
from hmc.serving.sessions import LevelSessions, resolve_device

REFERENCE = "hmc full"
"""The system that the others' tokens are compared with, where it runs."""


def ours(
    bundle: Path, level: str, target: int | None, workers: int = 1, cache: Path | None = None, device: str = "cpu"
) -> Run:
    """Translates with one level of a bundle. target: tokens to write, None: as many as the model wants. workers: one
    with a thread per core, or several of one thread."""
    manifest = validate(bundle)
    chosen = manifest.level(level)
    found = resolve_device(device, chosen)
    sessions = LevelSessions.open(bundle, manifest.architecture, chosen, found, 0, cache, workers)
    engine = Engine(sessions, queue_size=4096, max_rows=256, workers=workers)
    eos = manifest.architecture.eos_id

    def run(sources: Ids, beam: int) -> Ids:
        options = DecodeOptions(beam_size=beam, min_length=target or 1, max_length=target)
        futures = [engine.submit(ids, options, block=True) for ids in sources]
        found = [f.result().hypotheses[0] for f in futures]
        return [[*h.ids, eos] if h.complete else list(h.ids) for h in found]

    return run


def prepare(
    out: Path, target: int, peers: list[str], pythons: dict[str, str], bitext: Bitext | None
) -> tuple[Checkpoint, dict[str, Run]]:
    """Builds what is missing under `out` and loads every system."""
    if not (out / "checkpoint").is_dir():
        base_size_checkpoint(out / "checkpoint", text=[*bitext.sources, *bitext.targets] if bitext else [])
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
    """Seconds a batch per system and round, after one untimed round, and what each wrote in that one."""
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
    """A peer's time, at its better setting, over ours: median, smallest, largest over rounds. Where that is not
    CTranslate2's default, also its default over ours."""
    groups: dict[str, list[str]] = {}
    for name in times:
        if not name.startswith("hmc"):
            groups.setdefault(" ".join(name.split()[:2]), []).append(name)
    found = {}
    for group, members in groups.items():
        better = min(members, key=lambda n: statistics.median(times[n]))
        for rival in [better, *(n for n in members if n != better and n.endswith(CT2_DEFAULTS))]:
            for name, seconds in times.items():
                alike = not group.startswith("ct2") or _int8(name) == _int8(group)
                if name.startswith("hmc") and alike and (rival == better or not name.endswith(" workers")):
                    each = [rival_s / own_s for rival_s, own_s in zip(times[rival], seconds, strict=True)]
                    found[f"{name} against {rival}"] = (statistics.median(each), min(each), max(each))
    return found


def main() -> None:
    """Parses arguments, measures, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the models; kept between runs")
    parser.add_argument("--settings", default="1x1,32x1,32x4,64x4", help="batch x beam, with commas")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--stream", type=int, default=8, help="sentences one after the other, where the batch is one")
    parser.add_argument("--source", type=int, default=24, help="source tokens, EOS included")
    parser.add_argument("--target", type=int, default=25, help="target tokens, EOS included")
    parser.add_argument("--systems", default="", help="only systems of HMC with a part of their names among these")
    parser.add_argument("--only", default="", help="precision of HMC and CTranslate2: int8, fp32 or both when left out")
    parser.add_argument("--peers", default="ctranslate2", help=f"of {', '.join(PEERS)}, with commas")
    parser.add_argument("--optimum-python", help="interpreter of an environment that has optimum[onnxruntime]")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds before each run")
    parser.add_argument("--text", type=Path, nargs=2, metavar=("SRC", "TGT"), help="parallel text; see above")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    peers = [peer for peer in options.peers.split(",") if peer]
    if unknown := set(peers) - set(PEERS):
        parser.error(f"--peers {', '.join(sorted(unknown))}: choose of {', '.join(PEERS)}")
    print(__doc__)
    pythons = {"optimum": options.optimum_python} if options.optimum_python else {}
    bitext = Bitext.read(*options.text) if options.text else None
    checkpoint, systems = prepare(options.out, options.target, peers, pythons, bitext)
    systems = {n: run for n, run in systems.items() if _wanted(n, options.only)}
    if options.systems:
        parts = options.systems.split(",")
        systems = {n: run for n, run in systems.items() if not n.startswith("hmc") or any(p in n for p in parts)}
    report: dict[str, Any] = {"machine": machine_report(), "settings": {}}
    rng, size = np.random.default_rng(1), checkpoint.architecture.vocab_size
    for setting in options.settings.split(","):
        batch, beam = (int(part) for part in setting.split("x"))
        eos = checkpoint.architecture.eos_id
        count = options.stream if batch == 1 else batch
        sources = [[*rng.integers(3, size, options.source - 1).tolist(), eos] for _ in range(count)]
        if bitext:
            sources = bitext.sentences(checkpoint, count, options.source)
        batches = [sources[start : start + batch] for start in range(0, count, batch)]
        times, written = measure(systems, batches, beam, options.rounds, options.pause)
        table = {name: statistics.median(seconds) * 1000 for name, seconds in times.items()}
        agreed, compared = agreement(written, options.target), ratios(times)
        print(f"\nbatch {batch}, beam {beam} (milliseconds a batch, median of {options.rounds}; same tokens as fp32)")
        for name, milliseconds in table.items():
            print(f"  {name:30} {milliseconds:9.1f} {agreed[name]:7.0%}")
        for name, (middle, low, high) in compared.items():
            print(f"  {name:60} {middle:5.2f}x  ({low:.2f} to {high:.2f})")
        report["settings"][setting] = {"milliseconds": table, "agreement": agreed, "ratios": compared}
    write_report(options.json, report)


def _int8(name: str) -> bool:
    return "int8" in name or "int4" in name


def _wanted(name: str, only: str) -> bool:
    """Whether a system runs: with `only`, HMC's and CTranslate2's other precision does not."""
    return not only or not name.startswith(("hmc", "ct2")) or _int8(name) == (only == "int8")


if __name__ == "__main__":
    run_script(main)

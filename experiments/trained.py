"""HMC against CTranslate2 on a trained model and a test set: equal translations, BLEU, and speed.

    python -m experiments.trained CHECKPOINT --source FILE --reference FILE --text SRC TGT --out FOLDER
        [--settings 1x1,32x1,32x4] [--sentences 512] [--timed 64] [--rounds 5] [--report FILE]

CHECKPOINT has all heads. It is compiled in fp32, int8 and int4, calibrated on the sources of --text, and with
vocabulary shortlists learnt from --text; CTranslate2 has it in fp32 and int8, and a vocabulary map of the same lexicon.
Translations are as long as the model wants them, of the test set in its order, in batches.

Compared over all sentences: BLEU, and the share of translations that are those of HMC's fp32, token for token. Timed:
encoding and decoding of the first --timed sentences, in rounds, as in sizes; ratios are as there, to the better
of CTranslate2's settings of threads at the same kind of precision.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import sacrebleu

from experiments.peers.engines import CORES, Ids, Run, ctranslate2_peers
from experiments.sizes import REFERENCE, measure, ours, ratios
from experiments.support.script import machine_report, run_script, write_report
from hmc.artifact.bundle.checks import validate
from hmc.artifact.bundle.shortlist import Lexicon
from hmc.artifact.checkpoint.checkpoint import Checkpoint, load_checkpoint
from hmc.artifact.tokenizer.tokenizer import open_tokenizer
from hmc.benchmark.measure.text import TestSet
from hmc.compiler.bundle.requests import LevelRequest
from hmc.compiler.bundle.writer import compile_bundle
from hmc.compiler.lexicon import ShortlistText

CALIBRATION = 256
"""Number of sentences to calibrate on."""


def prepare(path: Path, checkpoint: Checkpoint, text: TestSet, out: Path) -> dict[str, Run]:
    """Builds what is missing under `out` and loads every system."""
    assert text.references is not None
    if not (out / "bundle").is_dir():
        compile_bundle(
            [LevelRequest(path)], out / "bundle", precisions=("fp32", "int8", "int4"),
            calibration=text.sources[:CALIBRATION],
            shortlist=ShortlistText(list(text.sources), list(text.references)),
        )  # fmt: skip
    levels = validate(out / "bundle").levels
    systems = {}
    for level in levels:
        for workers in (1,) if level.precision == "int4" else sorted({1, CORES}):  # 4-bit weights are for one sentence
            name = f"hmc {level.name}" + (f" {workers} workers" if workers > 1 else "")
            systems[name] = ours(out / "bundle", level.name, None, workers, out / "cache")
    [lexicon] = {out / "bundle" / level.shortlist for level in levels if level.shortlist}
    return systems | ctranslate2_peers(checkpoint, out, None, Lexicon.load(lexicon, checkpoint.architecture))


def main() -> None:
    """Parses arguments, measures, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="checkpoint with all heads")
    parser.add_argument("--source", type=Path, required=True, help="sentences of the test set")
    parser.add_argument("--reference", type=Path, required=True, help="their reference translations")
    parser.add_argument("--text", type=Path, nargs=2, metavar=("SRC", "TGT"), required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for the models; kept between runs")
    parser.add_argument("--settings", default="1x1,32x1,32x4", help="settings BATCHxBEAM, separated by commas")
    parser.add_argument("--sentences", type=int, default=512, help="sentences whose translations are compared")
    parser.add_argument("--timed", type=int, default=64, help="sentences that each round times")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.3, help="seconds to wait before each run")
    parser.add_argument("--report", type=Path, help="write the results to this file, as JSON")
    options = parser.parse_args()
    print(__doc__)
    checkpoint, test = load_checkpoint(options.checkpoint), TestSet.read(options.source, options.reference)
    assert test.references is not None
    systems = prepare(options.checkpoint, checkpoint, TestSet.read(*options.text), options.out)
    tokenizer, eos = open_tokenizer(checkpoint.tokenizer), checkpoint.architecture.eos_id
    sources = [[*tokenizer.encode(text), eos] for text in test.sources[: options.sentences]]
    references = [list(test.references[: len(sources)])]
    report: dict[str, Any] = {"machine": machine_report(), "beams": {}, "settings": {}}
    settings = [tuple(int(part) for part in setting.split("x")) for setting in options.settings.split(",")]
    for beam in sorted({beam for _, beam in settings}):
        written = {name: systems[name](sources, beam) for name in systems if " workers" not in name}
        print(f"\nbeam {beam}, {len(sources)} sentences: BLEU, translations that are those of {REFERENCE}, tokens")
        found = report["beams"][beam] = {}
        for name, ids in written.items():
            score = sacrebleu.corpus_bleu([tokenizer.decode(row) for row in ids], references).score
            same = statistics.mean(a == b for a, b in zip(ids, written[REFERENCE], strict=True))
            found[name] = {"bleu": score, "same": same, "tokens": statistics.mean(map(len, ids))}
            print(f"  {name:30} {score:6.2f} {same:7.1%} {found[name]['tokens']:6.1f}")
    for batch, beam in settings:
        timed: Ids = sources[: options.timed]
        batches = [timed[start : start + batch] for start in range(0, len(timed), batch)]
        times, _ = measure(systems, batches, beam, options.rounds, options.pause)
        table, compared = {n: statistics.median(seconds) * 1000 for n, seconds in times.items()}, ratios(times)
        print(f"\nbatch {batch}, beam {beam} (milliseconds a batch, median of {options.rounds})")
        for name, milliseconds in table.items():
            print(f"  {name:30} {milliseconds:9.1f}")
        for name, (middle, low, high) in compared.items():
            print(f"  {name:60} {middle:5.2f}x  ({low:.2f} to {high:.2f})")
        report["settings"][f"{batch}x{beam}"] = {"milliseconds": table, "ratios": compared}
    write_report(options.report, report)


if __name__ == "__main__":
    run_script(main)

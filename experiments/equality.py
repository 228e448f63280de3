"""Checks that the engine writes what a plain beam search writes, and that batching does not change it.

    python -m experiments.equality CHECKPOINT|BUNDLE --source FILE [--sentences 500] [--heads 72,36] [--report FILE]

(a) At fp32 the engine's best hypotheses are compared with those of `hmc.training.model.beam_search` in PyTorch, on
the same checkpoint with the same heads masked. Where two differ, both are scored in double precision, and the search is
repeated with weights changed by about as much as rounding changes them. If that gives both hypotheses, the difference
is a near tie; otherwise it is a bug. (a) needs a checkpoint, which is compiled first. With a bundle only (b) runs.
(b) At every precision and number of threads, each sentence is translated alone, then in batches of 32, then at random
times in random order, mixed with as many random sentences of 1 to 64 tokens. The ids must be identical.

Nothing is timed. The exit status is 1 if outputs differ that must not.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from experiments.support.decoding import alone, at_random_times, in_batches, opened, source_ids, together
from experiments.support.judge import Comparison, Judge, compare, reference_model, reference_search
from experiments.support.script import machine_report, run_script, write_report
from hmc.artifact.bundle.checks import validate
from hmc.artifact.bundle.manifest import Manifest
from hmc.artifact.checkpoint.checkpoint import CONFIG, load_checkpoint
from hmc.benchmark.measure.text import read_sentences
from hmc.compiler.bundle.requests import LevelRequest
from hmc.compiler.bundle.writer import compile_bundle
from hmc.engine.requests.options import DecodeOptions
from hmc.engine.requests.results import DecodedHypothesis

ARRIVALS = 3
"""Sentences that arrive while one is translated alone."""


def check_reference(
    bundle: Path, manifest: Manifest, level: str, checkpoint: Path, sources: list[list[int]], options: DecodeOptions
) -> Comparison:
    """(a) for one fp32 level."""
    loaded, layout = load_checkpoint(checkpoint), manifest.level(level).layout
    beam, limit = options.beam_size, options.max_length or 0
    with opened(bundle, manifest, level, 0) as engine:
        ours = [h.ids for h in together(engine, sources, options)]
    found = reference_search(reference_model(loaded, layout), sources, beam=beam, limit=limit)
    judge = Judge(loaded, layout)
    return compare(
        sources, ours, [tuple(h.ids) for h in found], judge,
        lambda n, pair: judge.near_tie(sources[n], pair, beam=beam, limit=limit),
    )  # fmt: skip


def check_batching(
    bundle: Path, manifest: Manifest, level: str, sources: list[list[int]], options: DecodeOptions, threads: int,
    seeds: int,
) -> tuple[list[DecodedHypothesis], dict[str, Any]]:  # fmt: skip
    """(b) for one level. Returns the hypotheses of single sentences, and how each way of batching differs from them."""
    with opened(bundle, manifest, level, threads) as engine:
        began = time.monotonic()
        single = alone(engine, sources, options)
        gap = (time.monotonic() - began) / len(sources) / ARRIVALS / 2
        found = {"batches of 32": in_batches(engine, sources, options)}
        for seed in range(seeds):
            found[f"random arrivals {seed}"] = at_random_times(engine, sources, options, seed, gap)
    return single, {name: differing(single, batched) for name, batched in found.items()}


def differing(single: list[DecodedHypothesis], batched: list[DecodedHypothesis]) -> dict[str, Any]:
    """Counts sentences with equal ids, lists the others, and gives the largest score difference among equal ids."""
    pairs = list(enumerate(zip(single, batched, strict=True)))
    return {
        "equal": sum(a.ids == b.ids for _, (a, b) in pairs),
        "score_difference": max((abs(a.score - b.score) for _, (a, b) in pairs if a.ids == b.ids), default=0.0),
        "differences": [
            {"sentence": n, "ids": [a.ids, b.ids], "scores": [a.score, b.score]}
            for n, (a, b) in pairs
            if a.ids != b.ids
        ],
    }


def run_batching(
    bundle: Path, manifest: Manifest, sources: list[list[int]], options: DecodeOptions, threads: list[int], seeds: int
) -> tuple[dict[str, Any], bool]:
    """(b) for all levels and numbers of threads. Prints the result; returns it, and whether all ids were identical."""
    report: dict[str, Any] = {}
    well = True
    for level in (level for level in manifest.levels if not level.on_cuda):
        first: list[DecodedHypothesis] | None = None
        for number in threads:
            single, found = check_batching(bundle, manifest, level.name, sources, options, number, seeds)
            if first is not None:
                found[f"alone with {threads[0]} thread(s)"] = differing(single, first)
            first = first or single
            report.setdefault(level.name, {})[str(number)] = found
            for name, result in found.items():
                same = result["equal"]
                print(f"  {level.name:12} {number} thread(s), {name:26} {same:4} of {len(sources)} identical")
                for each in result["differences"]:
                    print("    sentence {sentence}: scores {scores[0]:.7f} and {scores[1]:.7f}".format(**each))
                well &= same == len(sources)
    return report, well


def main() -> int:
    """Parses arguments, compares, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="checkpoint or bundle")
    parser.add_argument("--source", type=Path, required=True, help="sentences, one a line, plain or .gz")
    parser.add_argument(
        "--calibration", type=Path, help="sentences to calibrate int8 on; default: --source in reverse order"
    )
    parser.add_argument("--sentences", type=int, default=500, help="sentences to compare")
    parser.add_argument(
        "--heads", default="", help="head budgets to compile, in addition to all heads, separated by commas"
    )
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--max-length", type=int, default=100, help="most tokens of a translation, EOS included")
    parser.add_argument("--threads", default="1,2", help="numbers of threads for (b), separated by commas")
    parser.add_argument("--seeds", type=int, default=2, help="how often (b) is repeated with other random arrivals")
    parser.add_argument("--report", type=Path, help="write the results to this file, as JSON")
    arguments = parser.parse_args()
    is_checkpoint = (arguments.model / CONFIG).is_file()
    print(__doc__)
    texts = read_sentences(arguments.source)
    report: dict[str, Any] = {"machine": machine_report(), "model": str(arguments.model), "beam": arguments.beam}
    budgets = [None, *(int(n) for n in arguments.heads.split(",") if n)]
    requests = [LevelRequest(arguments.model, n) for n in budgets]
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle" if is_checkpoint else arguments.model
        if is_checkpoint:
            calibration = read_sentences(arguments.calibration) if arguments.calibration else texts[::-1]
            compile_bundle(requests, bundle, precisions=("fp32", "int8", "int4"), calibration=calibration)
        manifest = validate(bundle)
        sources = source_ids(bundle, manifest, [t for t in texts if t.strip()][: arguments.sentences])
        limit = min(arguments.max_length, manifest.architecture.max_positions - 1)
        options = DecodeOptions(beam_size=arguments.beam, max_length=limit)
        well, report["sentences"] = True, len(sources)
        if is_checkpoint:
            print(f"\n(a) beam {arguments.beam}, fp32, against the plain search")
            for level in (level for level in manifest.levels if level.precision == "fp32"):
                compared = check_reference(bundle, manifest, level.name, arguments.model, sources, options)
                print(f"  {level.name:12} {compared}")
                report.setdefault("reference", {})[level.name] = compared.to_json()
                well &= compared.explained
        else:
            print("\n(a) left out: a bundle has no PyTorch weights; give a checkpoint for it")
        print(f"\n(b) beam {arguments.beam}, each sentence alone, against the same sentence in a batch")
        threads = [int(n) for n in arguments.threads.split(",")]
        report["batching"], identical = run_batching(bundle, manifest, sources, options, threads, arguments.seeds)
        well &= identical
    write_report(arguments.report, report)
    return 0 if well else 1


if __name__ == "__main__":
    run_script(main)

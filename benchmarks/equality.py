"""Whether the engine writes what a plain implementation writes, and the same in any company.

    python benchmarks/equality.py CHECKPOINT|BUNDLE --source FILE [--sentences 500] [--heads 72,36] [--json FILE]

(a) At fp32 the engine's best hypotheses are compared with those of `hmc.training.beam_search` in PyTorch, on the same
checkpoint with the same heads masked. Where they differ, both are scored in double precision, and the search is
repeated with weights moved by as little as rounding moves them: a difference that this reproduces is a near tie, any
other a bug. Needs a checkpoint, which is compiled for the purpose; with a bundle only (b) runs.
(b) At every precision, and with each number of threads, each sentence is translated alone, in batches of 32, and in
random order at random times among as many random sentences of 1 to 64 tokens: the ids have to be identical.

Nothing is timed. Ends with status 1 where an output differs that should not.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from decoding import alone, amid_strangers, in_batches, opened, source_ids, together
from judge import Comparison, Judge, compare, reference_model, reference_search
from scripts import machine_report, run_script, write_report

from hmc.artifact.bundle import Manifest
from hmc.artifact.bundle_checks import validate
from hmc.artifact.checkpoint import CONFIG, load_checkpoint
from hmc.benchmark.text import read_sentences
from hmc.compiler.bundle_builder import LevelRequest
from hmc.compiler.bundle_writer import compile_bundle
from hmc.serving.options import DecodeOptions
from hmc.serving.results import Hypothesis

MEANWHILE = 3
"""Sentences that arrive in the time that one takes alone."""


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


def check_company(
    bundle: Path, manifest: Manifest, level: str, sources: list[list[int]], options: DecodeOptions, threads: int,
    seeds: int,
) -> tuple[list[Hypothesis], dict[str, Any]]:  # fmt: skip
    """(b) for one level: what it writes alone, and how that compares with each company."""
    with opened(bundle, manifest, level, threads) as engine:
        began = time.monotonic()
        lonely = alone(engine, sources, options)
        gap = (time.monotonic() - began) / len(sources) / MEANWHILE / 2
        found = {"batches of 32": in_batches(engine, sources, options)}
        for seed in range(seeds):
            found[f"random company {seed}"] = amid_strangers(engine, sources, options, seed, gap)
    return lonely, {name: differing(lonely, others) for name, others in found.items()}


def differing(lonely: list[Hypothesis], others: list[Hypothesis]) -> dict[str, Any]:
    """Sentences with equal ids, both scores of the others, and how far scores of equal ids are apart."""
    pairs = list(enumerate(zip(lonely, others, strict=True)))
    return {
        "equal": sum(a.ids == b.ids for _, (a, b) in pairs),
        "score_difference": max((abs(a.score - b.score) for _, (a, b) in pairs if a.ids == b.ids), default=0.0),
        "differences": [
            {"sentence": n, "ids": [a.ids, b.ids], "scores": [a.score, b.score]}
            for n, (a, b) in pairs
            if a.ids != b.ids
        ],
    }


def run_company(
    bundle: Path, manifest: Manifest, sources: list[list[int]], options: DecodeOptions, threads: list[int], seeds: int
) -> tuple[dict[str, Any], bool]:
    """(b) for all levels and numbers of threads, printed; and whether everything was identical."""
    report: dict[str, Any] = {}
    well = True
    for level in (level for level in manifest.levels if not level.on_cuda):
        first: list[Hypothesis] | None = None
        for number in threads:
            lonely, found = check_company(bundle, manifest, level.name, sources, options, number, seeds)
            if first is not None:
                found[f"alone with {threads[0]} thread(s)"] = differing(lonely, first)
            first = first or lonely
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
    parser.add_argument("--calibration", type=Path, help="sentences for int8 ranges; left out: --source, backwards")
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--heads", default="", help="head budgets of a checkpoint to compile beside all its heads")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--max-length", type=int, default=100, help="target tokens, EOS included")
    parser.add_argument("--threads", default="1,2", help="numbers of threads for (b), with commas")
    parser.add_argument("--seeds", type=int, default=2, help="random companies")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(__doc__)
    texts = read_sentences(arguments.source)
    report: dict[str, Any] = {"machine": machine_report(), "model": str(arguments.model), "beam": arguments.beam}
    with tempfile.TemporaryDirectory() as folder:
        is_checkpoint = (arguments.model / CONFIG).is_file()
        bundle = Path(folder) / "bundle" if is_checkpoint else arguments.model
        if is_checkpoint:
            calibration = read_sentences(arguments.calibration) if arguments.calibration else texts[::-1]
            budgets = [None, *(int(n) for n in arguments.heads.split(",") if n)]
            requests = [LevelRequest(arguments.model, n) for n in budgets]
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
        print(f"\n(b) beam {arguments.beam}, each sentence alone against each in company")
        threads = [int(n) for n in arguments.threads.split(",")]
        report["company"], alike = run_company(bundle, manifest, sources, options, threads, arguments.seeds)
        well &= alike
    write_report(arguments.json, report)
    return 0 if well else 1


if __name__ == "__main__":
    run_script(main)

"""Compares the translations and scores of two executors.

    python -m experiments.executors BUNDLE --source FILE [--sentences 200] [--levels full,full-int8] [--beams 1,4]
        [--executors onnxruntime,reference] [--references FILE]

Each sentence is translated by both. At beam 1 ONNX Runtime too takes the graph for beam search (the greedy graph rounds
otherwise). Prints how many translations are equal, and the largest and the mean difference of the scores of equal ones;
with references the BLEU of both too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sacrebleu.metrics import BLEU

from experiments.support.script import run_script
from hmc.benchmark.measure.text import read_sentences
from hmc.engine.support import EXECUTORS, Executor
from hmc.serving import DecodeOptions, Translation, Translator


def translated(bundle: Path, level: str, executor: Executor, texts: list[str], beam: int) -> list[Translation]:
    """Translations of texts, a sentence each."""
    # With patience a single row is searched by the graph for beam search, and not by the greedy one.
    options = DecodeOptions(beam_size=beam, patience=2.0 if beam == 1 else None)
    with Translator(bundle, level, device="cpu", threads=1, workers=1, executor=executor) as translator:
        return translator.translate(texts, options, segmentation="none")


def bleu(found: list[Translation], references: list[str]) -> str:
    """To two decimals."""
    return f"{BLEU().corpus_score([each.text for each in found], [references]).score:.2f}"


def main() -> None:
    """Prints a row for each level and beam."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--source", type=Path, required=True, help="a sentence on each line")
    parser.add_argument("--references", type=Path, help="a translation on each line")
    parser.add_argument("--sentences", type=int, default=200, help="drawn at random, always the same ones")
    parser.add_argument("--levels", default="full,full-int8")
    parser.add_argument("--beams", default="1,4")
    parser.add_argument("--executors", default="onnxruntime,reference", help="two of them")
    options = parser.parse_args()
    one, other = (name for name in EXECUTORS if name in options.executors.split(","))
    lines = read_sentences(options.source)
    drawn = np.random.default_rng(1).permutation(len(lines))[: options.sentences].tolist()
    texts = [lines[line] for line in drawn]
    references: list[str] = []
    if options.references:
        every = read_sentences(options.references)
        references = [every[line] for line in drawn]
    columns = ["level", "beam", "equal", "largest difference of scores", "mean"]
    if references:
        columns += [f"BLEU of {one}", f"of {other}"]
    print(f"| {' | '.join(columns)} |\n" + "|---" * len(columns) + "|")
    for level in options.levels.split(","):
        for beam in map(int, options.beams.split(",")):
            graphs = translated(options.bundle, level, one, texts, beam)
            ours = translated(options.bundle, level, other, texts, beam)
            pairs = list(zip(graphs, ours, strict=True))
            differences = [abs(first.score - second.score) for first, second in pairs if first.text == second.text]
            equal = f"{len(differences)} of {len(texts)}"
            row = [level, str(beam), equal, f"{max(differences):.2g}", f"{np.mean(differences):.2g}"]
            if references:
                row += [bleu(graphs, references), bleu(ours, references)]
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    run_script(main)

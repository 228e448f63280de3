"""Trains everything that a bundle of levels needs, and its controls, in one call: what a GPU does in eleven minutes.

    python -m experiments.levels START --text text --out runs/levels --seconds 640 --seeds 1,2,3 [--more said.tsv.gz]
    python -m experiments.levels START --text text --out runs/try --seconds 40 --seeds 1 --device cpu --batch-tokens 256

Three waves, each of trainings that run at once (`experiments.together`; with CUDA's MPS, which this starts):

1. `base`: START, the model with all heads, goes on. One for each seed.
2. From the base of the first seed, which teaches all of them, for each seed: `control` (all heads), `h75`, `h58` and
   `h36` with weights of their own, `shared` (the same numbers of heads in one set of weights), `fast` and `faster` (the
   encoder whole, the first and the last decoder layer, or the first alone, and half of the neurons of the decoder).
3. Each training translates the dev and the test sets of all kinds of text.

All that begin together have the same time, so a level and its control differ in nothing but what was cut. The same
command goes on after it was killed: trainings that have ended are not repeated. OUT/results gets scores (by kind, for
each seed, against all heads before and against the control), logs, all translations, and the weights of the first
seed, the most useful first, while they fit into --mib.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.kinds import KINDS, table
from experiments.support.script import run_script
from experiments.together import OUTPUTS
from hmc.artifact.checkpoint.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from hmc.artifact.checkpoint.slimming import slimmed
from hmc.artifact.errors import HmcError
from hmc.artifact.model.layers import RemovedLayers
from hmc.artifact.significance import bleu, bleu_statistics, difference
from hmc.artifact.storage.files import write_whole
from hmc.training.data.corpus import Splitting, TokenCorpus
from hmc.training.data.vocabulary import Vocabulary

BASE_SHARE, LEVELS_SHARE = 0.3, 0.5
"""Shares of the time in which the base and the levels are trained. The rest prepares text, starts and translates."""
LEVELS = (75, 58, 36)
CLOSING = 0.3
"""Share of a level's time in which heads close."""
WEIGHTS = ("base", "shared", "fast", "faster", "h36", "h58", "h75")
"""Trainings of the first seed whose weights are kept, while they fit."""
PARTS = ("dev", "test")


@dataclass(frozen=True)
class Training:
    """One run of `experiments.together`."""

    name: str
    start: Path
    seed: int
    words: tuple[str, ...] = field(default=())

    @property
    def folder(self) -> str:
        """Below OUT."""
        return f"{self.name}-{self.seed}"


def cut(base: Checkpoint, layers: tuple[int, ...]) -> Checkpoint:
    """The model with some decoder layers alone, which have the half of the neurons that has the largest weights."""
    arch = base.architecture
    removed = RemovedLayers.from_pairs(("decoder", n) for n in range(arch.decoder_layers) if n not in layers)
    kept: dict[str, list[Any]] = {"encoder": [range(arch.ffn_dim)] * arch.encoder_layers, "decoder": []}
    for layer in range(arch.decoder_layers):
        sublayer = arch.feed_forward("decoder", layer)
        size = np.linalg.norm(base.tensors[sublayer.output.weight], axis=0)
        best = np.sort(np.argsort(-size, kind="stable")[: arch.ffn_dim // 2]).tolist()
        kept["decoder"].append(best if layer in layers else [])
    rows = base.layout.to_json()
    for kind in ("decoder_self", "cross"):
        rows[kind] = [heads if layer in layers else [] for layer, heads in enumerate(rows[kind])]
    return slimmed(base, type(base.layout).from_json(rows), kept, removed)  # type: ignore[arg-type]


def waves(options: argparse.Namespace) -> Iterator[list[Training]]:
    """The bases; then, when these are trained, all that is trained from the first of them."""
    yield [Training("base", options.start, seed) for seed in options.seeds]
    base = options.out / f"base-{options.seeds[0]}" / "final"
    loaded = load_checkpoint(base)
    last = loaded.architecture.decoder_layers - 1
    starts = {"fast": (0, last), "faster": (0,)}
    for name, layers in starts.items():
        save_checkpoint(cut(loaded, layers), options.out / f"start-{name}")
    teacher = ("--teacher", str(base))
    numbers = [n for n in LEVELS if n < loaded.layout.total] or [max(1, loaded.layout.total // 2)]
    closing = ("--close", str(CLOSING), *teacher)
    found = []
    for seed in options.seeds:
        found.append(Training("control", base, seed, teacher))
        found += [Training(f"h{n}", base, seed, ("--heads", str(n), *closing)) for n in numbers]
        if len(numbers) > 1:
            found.append(Training("shared", base, seed, ("--heads", ",".join(map(str, numbers)), *closing)))
        found += [Training(name, options.out / f"start-{name}", seed, teacher) for name in starts]
    yield found


def prepare(options: argparse.Namespace) -> None:
    """Tokenises the text once for all trainings."""
    tokenizer = load_checkpoint(options.start).tokenizer
    files = [*(str(options.text / f"train.{kind}.tsv.gz") for kind in KINDS), *map(str, options.more)]
    TokenCorpus.build(files, Vocabulary(tokenizer), 128, options.out / "cache", ("en", "de"), Splitting())


def run_wave(options: argparse.Namespace, trainings: list[Training], seconds: float) -> None:
    """Runs trainings at once, and waits for all of them. Raises HmcError if one fails: the same command goes on."""
    texts = [str(options.text / f"{part}.{kind}.tsv.gz") for part in PARTS for kind in KINDS]
    threads = max(1, (os.cpu_count() or 1) // max(1, len(trainings)))
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    started = []
    for training in trainings:
        folder = options.out / training.folder
        folder.mkdir(parents=True, exist_ok=True)
        words = ["--out", str(folder), "--text", str(options.text), "--seconds", str(seconds), "--share", "0"]
        words += ["--cache", str(options.out / "cache"), "--batch-tokens", str(options.batch_tokens)]
        words += ["--device", options.device, "--seed", str(training.seed), "--beam", str(options.beam)]
        words += ["--more", *map(str, options.more), "--translate", *texts]
        command = [sys.executable, "-m", "experiments.together", str(training.start), *training.words, *words]
        with (folder / "errors.txt").open("a") as errors:
            started.append((training, subprocess.Popen(command, env=environment, stderr=errors)))
    failed = [training.folder for training, process in started if process.wait()]
    if failed:
        raise HmcError(f"{', '.join(failed)} failed: see errors.txt there; the same command goes on")


def scores(options: argparse.Namespace, trainings: list[Training]) -> dict[str, Any]:
    """Training and level → part → kind → BLEU, and the differences to the first base and to the control of the seed."""
    outputs = {
        x.folder: json.loads(gzip.decompress((options.out / x.folder / OUTPUTS).read_bytes())) for x in trainings
    }
    references = {
        f"{part}.{kind}.tsv.gz": [target for _, target in table(options.text / f"{part}.{kind}.tsv.gz")]
        for part in PARTS
        for kind in KINDS
    }

    def statistics(folder: str, level: str) -> dict[str, Any]:
        lines = outputs[folder][level]
        return {name: bleu_statistics(lines[name], references[name]) for name in references}

    whole = next(iter(outputs[trainings[0].folder]))
    base = statistics(trainings[0].folder, whole)
    found = dict[str, Any]()
    for training in trainings:
        control = f"control-{training.seed}"
        against = {"base": base} | ({"control": statistics(control, whole)} if control in outputs else {})
        for level in outputs[training.folder]:
            own = statistics(training.folder, level)
            row: dict[str, Any] = {name: {"bleu": float(bleu(each.sum(axis=0)))} for name, each in own.items()}
            for what, other in against.items():
                for name, each in own.items():
                    compared = difference(each, other[name], bleu)
                    row[name][f"to {what}"] = [compared.value, compared.low, compared.high]
            found[f"{training.folder} {level}"] = row
    return found


def printed(found: dict[str, Any]) -> str:
    """Means over the kinds, of dev and of test: BLEU, and what it is above the base and above the control."""
    columns = ("BLEU", "-base", "-control")
    lines = [" " * 24 + "".join(f"{part + ' ' + name:>14}" for part in PARTS for name in columns)]
    for name, row in found.items():
        cells = list[str]()
        for part in PARTS:
            rows = [row[f"{part}.{kind}.tsv.gz"] for kind in KINDS]
            means = [np.mean([each["bleu"] for each in rows])]
            means += [
                np.mean([each[what][0] for each in rows]) for what in ("to base", "to control") if what in rows[0]
            ]
            cells += [f"{means[0]:.2f}", *(f"{mean:+.2f}" for mean in means[1:]), *["–"] * (3 - len(means))]
        lines.append(f"{name:<24}" + "".join(f"{cell:>14}" for cell in cells))
    return "\n".join(lines)


def collect(options: argparse.Namespace, trainings: list[Training], found: dict[str, Any]) -> None:
    """Fills OUT/results, which stays below --mib."""
    results = options.out / "results"
    shutil.rmtree(results, ignore_errors=True)
    for training in trainings:
        for name in ("log.txt", OUTPUTS):
            (results / training.folder).mkdir(parents=True, exist_ok=True)
            shutil.copy(options.out / training.folder / name, results / training.folder / name)
    write_whole(results / "scores.json", json.dumps(found, indent=1) + "\n")
    write_whole(results / "scores.txt", printed(found) + "\n")
    for name in WEIGHTS:
        final = options.out / f"{name}-{options.seeds[0]}" / "final"
        size = sum(path.stat().st_size for path in (*results.rglob("*"), *final.rglob("*")) if path.is_file())
        if final.is_dir() and size < options.mib * 2**20:
            shutil.copytree(final, results / final.parent.name / "final")


def start_mps(options: argparse.Namespace) -> None:
    """Lets several processes compute on the GPU at once."""
    folder = options.out / "mps"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    subprocess.run(["nvidia-cuda-mps-control", "-d"], check=False)


def main() -> None:
    """Trains all waves, scores and collects."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", type=Path, help="checkpoint with all heads")
    parser.add_argument("--text", type=Path, required=True, help="of `experiments.kinds`")
    parser.add_argument("--more", type=Path, nargs="*", default=[], help="further texts, such as translations")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=640, help="of all")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1, 2, 3])
    parser.add_argument("--batch-tokens", type=int, default=12288)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--mib", type=float, default=58, help="most that OUT/results takes")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.device == "cuda":
        start_mps(options)
    prepare(options)
    trainings: list[Training] = []
    for wave, share in zip(waves(options), (BASE_SHARE, LEVELS_SHARE), strict=True):
        run_wave(options, wave, share * options.seconds)
        trainings += wave
    found = scores(options, trainings)
    collect(options, trainings, found)
    print(printed(found))


if __name__ == "__main__":
    run_script(main)

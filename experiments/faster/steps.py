"""The steps of `experiments.faster`. Each is one command of `hmc`, or keeps its result, and is not done again."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from experiments.mixed_text import plain, read
from experiments.source_text import chosen
from hmc.artifact.bundle.checks import validate
from hmc.artifact.errors import InvalidRequestError
from hmc.benchmark.measure.quality import measure_quality
from hmc.benchmark.measure.text import TestSet

STUDY, QUALITY = "study.json", "quality.json"
RECIPE = """\
[data]
source_language = "en"
target_language = "de"
train = [{train}]
dev = {dev}

[tokenizer]
vocab_size = {vocabulary}

[model]
d_model = {width}
ffn_dim = {neurons}
encoder_layers = {layers}
decoder_layers = {layers}
heads = {heads}

[train]
steps = {steps}
batch_tokens = {batch_tokens}
learning_rate = {rate}
warmup_steps = {warmup}
cooldown_steps = {cooldown}
dropout = 0.1
label_smoothing = 0.1
seed = {seed}

[run]
precision = "bf16-mixed"
log_every = 50
save_every = {save_every}
eval_every = {eval_every}
eval_sentences = {dev_sentences}
keep_checkpoints = 5
"""
TEXTS = ("train", "val", "test_2016_flickr")


@dataclass(frozen=True)
class Study:
    """What is trained, pruned and measured. It is kept in the folder, which holds the results of one study alone."""

    data: str
    """Folder with `multi30k`, and optionally with `tatoeba/deu-eng.short.tsv.gz`."""
    teacher: str
    """A MarianMT directory or a checkpoint."""
    width: int
    neurons: int
    layers: int
    heads: int
    vocabulary: int
    steps: int
    batch_tokens: int
    rate: float
    close_steps: int
    recover_steps: int
    speedups: str
    """As `hmc prune --target-speedup` takes them."""
    batch: int
    beam: int
    threads: int
    """Requests that the latency table measures."""
    loss: float
    """BLEU that a level may lose against the unpruned int8 level."""
    lines: int | None
    """Lines of the training text; None: all."""
    dev_sentences: int
    test_sentences: int | None
    seed: int

    def check(self, out: Path) -> None:
        """Keeps the study in `out`. Raises InvalidRequestError if the folder has results of another one."""
        wanted = asdict(self)
        file = out / STUDY
        if file.is_file():
            kept = json.loads(file.read_text(encoding="utf-8"))
            if differing := [name for name in wanted if kept.get(name) != wanted[name]]:
                raise InvalidRequestError(
                    f"{out} has results of other settings ({', '.join(differing)}): give those of {file}, or choose "
                    "another --out"
                )
            return
        out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")

    def split(self, name: str, language: str) -> Path:
        """A file of the corpus."""
        return Path(self.data) / "multi30k" / f"{name}.{language}.gz"

    def test_set(self) -> TestSet:
        """The test set that BLEU is measured on and whose sentences are timed."""
        source, target = (self.split("test_2016_flickr", language) for language in ("en", "de"))
        return TestSet.read(source, target, name="test_2016_flickr", limit=self.test_sentences)


def english(study: Study, out: Path) -> Path:
    """Writes the English sentences of the corpus and of Tatoeba, without those of dev and test text."""
    file = out / "english.txt"
    if not file.is_file():
        left_out = {plain(line) for name in TEXTS[1:] for line in read(study.split(name, "en"))}
        lines = read(study.split("train", "en"))
        if (pairs := Path(study.data) / "tatoeba" / "deu-eng.short.tsv.gz").is_file():
            lines += chosen(read(pairs), left_out | {plain(line) for line in lines}, words=3)
        file.write_text("".join(f"{line}\n" for line in lines[: study.lines]), encoding="utf-8")
    return file


def translated(study: Study, out: Path) -> tuple[Path, Path]:
    """Lets the teacher translate the English text; returns the sources and their translations."""
    files = out / "text" / "train.source.txt", out / "text" / "train.target.txt"
    if not all(file.is_file() for file in files):
        hmc("distill", study.teacher, "--source", english(study, out), "--out", out / "text")
    return files


def trained(study: Study, out: Path, text: tuple[Path, Path]) -> Path:
    """Trains the model on the teacher's translations; returns its checkpoint."""
    recipe, model = out / "recipe.toml", out / "model" / "final"
    if not model.is_dir():
        warmup = max(1, min(1000, study.steps // 10))
        values = asdict(study) | {
            "train": json.dumps(f"{text[0]} {text[1]}"),
            "dev": json.dumps(f"{study.split('val', 'en')} {study.split('val', 'de')}"),
            "warmup": warmup,
            "cooldown": study.steps - warmup,
            "save_every": max(1, min(100, study.steps // 4)),
            "eval_every": max(1, study.steps // 10),
        }
        recipe.write_text(RECIPE.format(**values), encoding="utf-8")
        hmc("train", recipe, "--out", out / "model")
    return model


def pruned(study: Study, out: Path, model: Path, text: tuple[Path, Path]) -> Path:
    """Prunes the model to each speed-up; returns the bundle, in which `full-int8` is the model itself."""
    bundle = out / "pruned" / "bundle"
    if not (out / "pruned" / "latency-report.json").is_file():
        hmc(
            "prune", model, "--target-speedup", study.speedups, "--serve-precision", "int8",
            "--serve-batch", study.batch, "--serve-beam", study.beam, "--serve-threads", study.threads,
            "--close-steps", study.close_steps, "--recover-steps", study.recover_steps,
            "--distill", "0.9", "--batch-tokens", study.batch_tokens, "--precision", "bf16-mixed",
            "--save-every", 100, "--eval-sentences", study.dev_sentences, "--seed", study.seed,
            "--data", f"{text[0]} {text[1]}", "--dev", f"{study.split('val', 'en')} {study.split('val', 'de')}",
            "--out", out / "pruned",
        )  # fmt: skip
    return bundle


def scored(study: Study, out: Path, bundle: Path) -> dict[str, float]:
    """Returns level → BLEU with the beam of the study; the unpruned level is first."""
    file = out / QUALITY
    if not file.is_file():
        levels = [level.name for level in validate(bundle).levels]
        found = measure_quality(bundle, study.test_set(), levels, beam=study.beam)
        scores = {name: found[name].bleu for name in levels}
        file.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    kept: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))
    return kept


def fastest(scores: dict[str, float], milliseconds: dict[str, float], loss: float) -> str | None:
    """Returns the pruned level of least time among those that lose at most `loss` BLEU; None: all lose more.

    scores: level → BLEU, the unpruned level first. milliseconds: level → time of a request.
    """
    whole, *levels = scores
    good = [name for name in levels if scores[name] >= scores[whole] - loss]
    return min(good, key=lambda name: milliseconds[name], default=None)


def hmc(*words: object) -> None:
    """Runs a command of `hmc`, which is printed first. Raises InvalidRequestError if it fails; it says why itself."""
    command = [sys.executable, "-m", "hmc.cli", *map(str, words)]
    print(f"$ {shlex.join(['hmc', *command[3:]])}", flush=True)
    if status := subprocess.run(command, check=False).returncode:
        raise InvalidRequestError(
            f"hmc {words[0]} ended with status {status}; the same command again goes on from there"
        )

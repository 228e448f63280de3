"""One sentence at a time with a drafter and without, and in CTranslate2, on the same trained weights, interleaved.

    python benchmarks/drafted.py BUNDLE CHECKPOINT --source FILE --out FOLDER [--reference FILE] [--sentences 100]
        [--rounds 7] [--levels full-int8,h36-int8] [--json FILE]

BUNDLE was compiled of CHECKPOINT with `--drafter`; CHECKPOINT has all heads. Greedy search of real sentences, each sent
when the one before is answered, at their natural lengths. Timed: encoding and decoding of token ids, all of it, the
drafter's included. Not timed: loading, tokenisation, detokenisation. Each round every system translates the sentences
once, in an order that rotates, after a pause; a ratio is that of two times of one round, and the median over the rounds
is reported with the smallest and the largest. Every engine runs with two threads and with one, and is compared at its
better setting.

How far a drafter helps depends on how often it is right, so weights are trained ones: steps are counted, and the
tokens of a level with the drafter have to be those without. CTranslate2 runs all heads at int8.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sacrebleu
from scripts import machine_report, run_script, write_report

from hmc.artifact.bundle import Level, Manifest
from hmc.artifact.bundle_checks import validate
from hmc.artifact.checkpoint import Checkpoint, load_checkpoint
from hmc.artifact.tokenizer import open_tokenizer
from hmc.benchmark.text import TestSet, read_sentences
from hmc.serving.engine import Engine
from hmc.serving.options import DecodeOptions
from hmc.serving.row_caches import RowCaches
from hmc.serving.sessions import Device, LevelSessions

Ids = list[int]
Run = Callable[[Ids], Ids]
"""A source, with EOS → what was written, without."""
THREADS = (2, 1)
GREEDY = DecodeOptions(beam_size=1)


@dataclass
class Steps:
    """Runs of a level's decoder, and tokens that they were given."""

    runs: int = 0
    tokens: int = 0


def counted(steps: dict[int, Steps]) -> None:
    """Counts what decoders do from now on, by the identity of their sessions."""
    for name in ("run", "run_on", "run_chain"):
        call = getattr(RowCaches, name)

        def noted(self: RowCaches, given: Any, call: Callable[..., Any] = call) -> Any:
            found = steps.setdefault(id(self.session), Steps())
            found.runs, found.tokens = found.runs + 1, found.tokens + (1 if isinstance(given, dict) else len(given))
            return call(self, given)

        setattr(RowCaches, name, noted)


class Ours:
    """A level, with the drafter or without."""

    def __init__(
        self, bundle: Path, manifest: Manifest, level: Level, threads: int, cache: Path, *, drafted: bool
    ) -> None:
        self.sessions = LevelSessions.open(bundle, manifest.architecture, level, Device("cpu"), threads, cache)
        found = manifest.drafter
        if drafted and found:
            self.sessions.drafter = LevelSessions.open(
                bundle, found.architecture, found.level, Device("cpu"), threads, cache, variant="greedy"
            )
        self._engine = Engine(self.sessions, queue_size=16, max_rows=16)

    def __call__(self, source: Ids) -> Ids:
        return list(self._engine.submit(source, GREEDY).result().hypotheses[0].ids)

    @property
    def decoder(self) -> int:
        """Identity of the session whose steps count."""
        return id(self.sessions.decoder("greedy"))


def ctranslate2_system(checkpoint: Checkpoint, out: Path, threads: int) -> Run:
    """CTranslate2 on all heads at int8."""
    import ctranslate2  # type: ignore[import-untyped]
    from ctranslate2_model import write_ctranslate2

    arch = checkpoint.architecture
    pieces = [f"w{i}" for i in range(arch.vocab_size)]
    pieces[arch.eos_id] = "</s>"
    if not (out / "ct2-int8").is_dir():
        write_ctranslate2(checkpoint, pieces, out / "ct2-int8", "int8")
    translator = ctranslate2.Translator(
        str(out / "ct2-int8"), device="cpu", inter_threads=1, intra_threads=threads, compute_type="int8"
    )
    numbers = {piece: number for number, piece in enumerate(pieces)}

    def run(source: Ids) -> Ids:
        limit = min(2 * len(source) + 10, arch.max_positions - 1)
        found = translator.translate_batch(
            [[pieces[i] for i in source]], beam_size=1, min_decoding_length=0, max_decoding_length=limit
        )
        return [numbers[piece] for piece in found[0].hypotheses[0]]

    return run


def measure(
    systems: dict[str, Run], sources: list[Ids], rounds: int, pause: float
) -> tuple[dict[str, list[float]], dict[str, list[Ids]]]:
    """Seconds a sentence per system and round, after one untimed round, and what each wrote in that one."""
    names, written = list(systems), {}
    times: dict[str, list[float]] = {name: [] for name in systems}
    for turn in range(rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            time.sleep(pause)
            began = time.perf_counter()
            found = [systems[name](source) for source in sources]
            if turn:
                times[name].append((time.perf_counter() - began) / len(sources))
            else:
                written[name] = found
    return times, written


def better(times: dict[str, list[float]], system: str) -> list[float]:
    """The times of a system at the better of its numbers of threads."""
    return min((times[f"{system}, {n} threads"] for n in THREADS), key=statistics.median)


def over(one: Iterable[float], other: Iterable[float]) -> tuple[float, float, float]:
    """How many times `one` the time of `other` takes, round by round: median, smallest, largest."""
    each = [b / a for a, b in zip(one, other, strict=True)]
    return statistics.median(each), min(each), max(each)


def main() -> None:
    """Parses arguments, measures, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder for CTranslate2's model; kept between runs")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, help="for BLEU")
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--levels", default="", help="with commas; all that a drafter guesses for when left out")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds before each run")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(__doc__)
    manifest, checkpoint = validate(options.bundle), load_checkpoint(options.checkpoint)
    if manifest.drafter is None:
        parser.error(f"{options.bundle} has no drafter: compile it with --drafter")
    texts = read_sentences(options.source)[: options.sentences]
    tokenizer, eos = open_tokenizer(checkpoint.tokenizer), checkpoint.architecture.eos_id
    sources = [[*tokenizer.encode(text), eos] for text in texts]
    names = [n for n in options.levels.split(",") if n] or [x.name for x in manifest.levels if not x.on_cuda]
    steps: dict[int, Steps] = {}
    counted(steps)
    ours: dict[str, Ours] = {}
    for level in map(manifest.level, names):
        for drafted in (False, True):
            for threads in THREADS:
                name = f"{level.name}{' drafted' if drafted else ''}, {threads} threads"
                ours[name] = Ours(options.bundle, manifest, level, threads, options.out / "cache", drafted=drafted)
    systems: dict[str, Run] = dict(ours)
    systems |= {f"ct2, {n} threads": ctranslate2_system(checkpoint, options.out, n) for n in THREADS}
    times, written = measure(systems, sources, options.rounds, options.pause)
    report: dict[str, Any] = {"machine": machine_report(), "sentences": len(sources), "levels": {}, "milliseconds": {}}
    print(f"\nmilliseconds a sentence, median of {options.rounds} rounds of {len(sources)} sentences")
    for name, seconds in times.items():
        tokens = statistics.mean(len(ids) + 1 for ids in written[name])
        report["milliseconds"][name] = statistics.median(seconds) * 1000
        print(f"  {name:40} {statistics.median(seconds) * 1000:7.2f}   {tokens:.1f} tokens")
    references = TestSet.read(options.source, options.reference).references if options.reference else None
    if references:
        for name in (*(f"{n}, {THREADS[0]} threads" for n in names), f"ct2, {THREADS[0]} threads"):
            decoded = [tokenizer.decode(ids) for ids in written[name]]
            print(f"  BLEU of {name}: {sacrebleu.corpus_bleu(decoded, [list(references[: len(decoded)])]).score:.2f}")
    for name in names:
        plain, drafted = better(times, name), better(times, f"{name} drafted")
        found = {
            "against ct2": over(plain, better(times, "ct2")),
            "drafted against ct2": over(drafted, better(times, "ct2")),
            "drafted against itself without": over(drafted, plain),
        }
        key = f"{name} drafted, {THREADS[0]} threads"
        done = steps[ours[key].decoder]
        runs = done.runs / (options.rounds + 1) / len(sources)
        same = sum(a == b for a, b in zip(written[key], written[f"{name}, {THREADS[0]} threads"], strict=True))
        print(f"\n{name}: {same} of {len(sources)} the same with the drafter; {runs:.1f} steps a sentence with it")
        for what, (middle, low, high) in found.items():
            print(f"  {what:32} {middle:5.2f}x  ({low:.2f} to {high:.2f})")
        report["levels"][name] = {"same": same, "steps": runs, **found}
    write_report(options.json, report)


if __name__ == "__main__":
    run_script(main)

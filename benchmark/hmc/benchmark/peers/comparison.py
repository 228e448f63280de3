"""HMC's levels beside CTranslate2 with the same full weights, from text to text, each engine in its own process."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from sacrebleu.metrics import BLEU

from hmc.artifact.checkpoint.checkpoint import load_checkpoint
from hmc.artifact.errors import FailedPreconditionError
from hmc.benchmark.measure.latency import SETTLE_S, requests_of, rotated
from hmc.benchmark.measure.text import TestSet
from hmc.serving.runtime.threads import cores

Texts = Sequence[str]
Translate = Callable[[Texts, int], list[str]]
"""Texts and the beam → translations."""
CT2 = "CTranslate2 int8"
Progress = Callable[[str], None]
Name = tuple[str, int]
"""(engine, batches at a time)"""


@dataclass(frozen=True)
class Timed:
    """One engine, at its better use of the cores for each batch size."""

    name: str
    """A level of the bundle, or `CT2`."""
    bleu: float | None
    """BLEU on the test set; None without references."""
    milliseconds: dict[int, float]
    """Sentences in a request → median time of a request."""
    speed: dict[int, float]
    """Sentences in a request → CTranslate2's time divided by this one's, median of the rounds."""


def installed() -> bool:
    """Whether CTranslate2 can be compared with."""
    return find_spec("ctranslate2") is not None


def compare(  # noqa: PLR0913 - what to compare, and how much of it
    bundle: Path, levels: Sequence[str], checkpoint: Path, test: TestSet, *,
    batches: Sequence[int], beam: int, timed: int, rounds: int, progress: Progress = lambda _: None,
) -> list[Timed]:  # fmt: skip
    """Times levels of a bundle and CTranslate2 int8 in turn; CTranslate2 comes last.

    Every engine has a process of its own, and only one of them works at a time. Each is tried with one batch on all
    cores and with a batch on each core; for each batch size its better way counts. checkpoint: the full weights that
    the bundle was compiled from. timed: sentences of the test set that are timed.

    Raises FailedPreconditionError if CTranslate2 is not installed.
    """
    if not installed():
        raise FailedPreconditionError("CTranslate2 is not installed: pip install ctranslate2")
    from hmc.benchmark.peers.ctranslate2_model import write_ctranslate2

    full = load_checkpoint(checkpoint)
    sizes = max(full.architecture.vocab_size, full.architecture.source_size)
    pieces = [piece_of(token) for token in range(sizes)]
    ways = sorted({1, cores()})
    with ExitStack() as stack:
        model = Path(stack.enter_context(TemporaryDirectory()))
        write_ctranslate2(full, pieces, model, "int8")
        engines = {
            (level, workers): stack.enter_context(EngineProcess(load_level, bundle, level, workers))
            for level in levels
            for workers in ways
        }
        for workers in ways:
            loading = EngineProcess(load_ctranslate2, model, checkpoint, workers, cores() // workers)
            engines[CT2, workers] = stack.enter_context(loading)
        texts: dict[str, list[str]] = {}
        for (name, workers), engine in engines.items():
            progress(f"translating with {name}")
            found = engine.start(test.sources if workers == 1 else test.sources[:1], beam)
            texts.setdefault(name, found)  # of one worker, which comes first
        seconds = {
            batch: _rounds(engines, requests_of(test.sources[:timed], batch), beam, rounds, progress)
            for batch in batches
        }
    return [_result(name, texts[name], test, seconds, ways) for name in [*levels, CT2]]


def _rounds(
    engines: dict[Name, EngineProcess], requests: Sequence[Sequence[str]], beam: int, rounds: int, progress: Progress
) -> dict[Name, list[float]]:
    """Engine → the mean seconds of a request, for every round. The order of the engines rotates."""
    found: dict[Name, list[float]] = {name: [] for name in engines}
    for turn in range(rounds):
        for name in rotated(list(engines), turn):
            progress(f"round {turn + 1} of {rounds}: {name[0]}")
            time.sleep(SETTLE_S)
            found[name].append(statistics.mean(engines[name].seconds(request, beam) for request in requests))
    return found


def _result(
    name: str, texts: list[str], test: TestSet, seconds: dict[int, dict[Name, list[float]]], ways: Sequence[int]
) -> Timed:
    def better(engine: str, batch: int) -> list[float]:
        return min((seconds[batch][engine, workers] for workers in ways), key=statistics.median)

    bleu = None if test.references is None else BLEU().corpus_score(texts, [list(test.references)]).score
    speed = {
        batch: statistics.median(a / b for a, b in zip(better(CT2, batch), better(name, batch), strict=True))
        for batch in seconds
    }
    return Timed(name, bleu, {batch: 1000 * statistics.median(better(name, batch)) for batch in seconds}, speed)


_translate: Translate | None = None
"""The engine of this process."""


class EngineProcess:
    """An engine in a process of its own, so that its threads and memory disturb no other one. Use it in a `with` block,
    which begins when the engine is loaded."""

    def __init__(self, load: Callable[..., Translate], *arguments: object) -> None:
        """load: a function of a module, called with the arguments in the new process."""
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, partial(_begin, load, *arguments))

    def start(self, texts: Texts, beam: int) -> list[str]:
        """Loads the engine, and translates texts without timing them."""
        return self._pool.submit(_run, texts, beam).result()[1]

    def seconds(self, texts: Texts, beam: int) -> float:
        """The seconds in which the engine translates the texts in one request."""
        return self._pool.submit(_run, texts, beam).result()[0]

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()


def _begin(load: Callable[..., Translate], *arguments: object) -> None:
    global _translate  # noqa: PLW0603 - it is what this process is for
    _translate = load(*arguments)


def _run(texts: Texts, beam: int) -> tuple[float, list[str]]:
    assert _translate is not None
    began = time.perf_counter()
    found = _translate(texts, beam)
    return time.perf_counter() - began, found


def load_level(bundle: Path, level: str, workers: int) -> Translate:
    """A level of HMC on the CPU. workers: 1 takes a thread for each core; more take one each."""
    from hmc.serving import DecodeOptions, Translator

    translator = Translator(bundle, level, device="cpu", workers=workers)

    def translate(texts: Texts, beam: int) -> list[str]:
        return [t.text for t in translator.translate(texts, DecodeOptions(beam_size=beam), segmentation="none")]

    return translate


def load_ctranslate2(model: Path, checkpoint: Path, workers: int, threads: int) -> Translate:
    """CTranslate2 at int8 on the CPU. model: a folder that `write_ctranslate2` wrote; checkpoint: what it was made of.
    workers, threads: batches at a time, and threads of each."""
    import ctranslate2  # type: ignore[import-untyped]

    from hmc.artifact.checkpoint.checkpoint import load_checkpoint
    from hmc.artifact.tokenizer.tokenizer import open_tokenizer

    loaded = load_checkpoint(checkpoint)
    tokenizer, arch = open_tokenizer(loaded.tokenizer), loaded.architecture
    engine: Any = ctranslate2.Translator(
        str(model), device="cpu", inter_threads=workers, intra_threads=threads, compute_type="int8"
    )

    def translate(texts: Texts, beam: int) -> list[str]:
        sources = [[*tokenizer.encode(text), arch.eos_id] for text in texts]
        results = engine.translate_batch(
            [[piece_of(i) for i in ids] for ids in sources],
            beam_size=beam,
            max_batch_size=-(-len(texts) // workers),
            max_decoding_length=min(arch.max_positions, 2 * max(map(len, sources)) + 10),
        )
        return [tokenizer.decode([int(piece[1:]) for piece in result.hypotheses[0]]) for result in results]

    return translate


def piece_of(token: int) -> str:
    """The name that a token has in a model of CTranslate2."""
    return f"w{token}"

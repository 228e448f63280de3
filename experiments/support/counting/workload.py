"""Sentences of natural lengths, and how they reach a level: all at once, or in waves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import sentencepiece

from hmc.artifact.model.architecture import Architecture
from hmc.artifact.tokenizer.files import TOKENIZER
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.requests.caller import Priority
from hmc.engine.requests.options import MAX_TOKENS, DecodeOptions
from hmc.engine.requests.results import Decoded
from hmc.engine.scheduling.budgets import POOLS_IDLE_S
from hmc.engine.scheduling.engine import Engine
from hmc.serving.requests.options import Target
from hmc.serving.translator import Translator

DEMO = Path(__file__).resolve().parents[3] / "cli/hmc/cli/demo_data"
WAVE = 40
"""Most sentences of a wave."""
PAUSE_S, PAUSES = 0.002, 0.2
"""Seconds that a wave pauses after a sentence, and the share of its sentences after which it does."""
QUEUE = 100_000
"""Sentences that may wait."""
PATIENCE_S = 60.0
"""Seconds within which an idle level has given its pools back."""


@dataclass(frozen=True)
class NaturalLengths:
    """Lengths of real sentence pairs in tokens, EOS included."""

    sources: list[int]
    targets: list[int]

    @classmethod
    def read(cls, source: Path | None = None, target: Path | None = None) -> NaturalLengths:
        """Of parallel text, a sentence a line, in tokens of the embedded model. Default: its own test set."""
        tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(DEMO / "checkpoint" / TOKENIZER))

        def lengths(path: Path) -> list[int]:
            return [len(ids) + 1 for ids in tokenizer.encode(path.read_text(encoding="utf-8").splitlines())]

        return cls(lengths(source or DEMO / "test.en"), lengths(target or DEMO / "test.de"))

    def sources_of(self, arch: Architecture, count: int, seed: int = 1) -> Iterator[list[int]]:
        """Sources of these lengths, of random tokens."""
        rng = np.random.default_rng(seed)
        for length in rng.choice(self.sources, count):
            yield random_source(arch, min(int(length), arch.max_positions), rng)


def random_source(arch: Architecture, length: int, rng: np.random.Generator) -> list[int]:
    """Random token ids, EOS last."""
    return [*rng.integers(3, arch.vocab_size, length - 1).tolist(), arch.eos_id]


def open_level(bundle: Path, level: str, rows: int, *, longest: int = 0) -> Translator:
    """A level on CUDA, as a server loads it, but with a queue for everything that is measured here.

    rows: run together. longest: tokens that all of them may have together; 0: what the server's default allows.
    """
    tokens = max(MAX_TOKENS, rows * longest)
    return Translator(bundle, level, device="cuda", max_rows=rows, max_tokens=tokens, queue_size=QUEUE)


def queue_at_once(
    translator: Translator, sources: Sequence[list[int]], options: DecodeOptions, constraints: Constraints | None = None
) -> list[Future[Decoded]]:
    """Queues all sentences before the first of them starts. constraints: default: those of the options."""
    engine, given = translator._engine, constraints or translator._codec.constraints(options, Target())
    with engine.queue.changed:  # the worker needs this lock to take a sentence
        return [engine.submit(source, options, given) for source in sources]


def in_waves(
    translator: Translator, sources: Sequence[list[int]], options: DecodeOptions, seed: int = 4,
    priority: Priority = Priority.INTERACTIVE,
) -> None:  # fmt: skip
    """Sends waves of 1 to WAVE sentences, each when the one before is answered, with short pauses between sentences."""
    rng, sent = np.random.default_rng(seed), 0
    while sent < len(sources):
        wave = sources[sent : sent + int(rng.integers(1, WAVE + 1))]
        futures = []
        for source in wave:
            futures.append(translator._engine.submit(source, options, priority=priority))
            if rng.random() < PAUSES:
                time.sleep(PAUSE_S)
        for future in futures:
            future.result()
        sent += len(wave)


def idle(translator: Translator) -> None:
    """Puts the engine's clock ahead, as if no sentence had come for so long that every mode gives its pools back, and
    waits until they have. Raises TimeoutError after PATIENCE_S."""
    engine = translator._engine
    assert isinstance(engine, Engine)
    ends = time.monotonic() + PATIENCE_S
    with engine.queue.changed:
        for scheduler in engine._schedulers:
            ahead = scheduler._clock() - time.monotonic() + POOLS_IDLE_S
            scheduler._clock = partial(_monotonic, ahead)
        engine.queue.changed.notify_all()
    while any(worker._batches for worker in engine.workers) or _opening():
        if time.monotonic() > ends:
            raise TimeoutError(f"pools were not given back within {PATIENCE_S:.0f} seconds")
        time.sleep(0.01)


def _monotonic(ahead: float) -> float:
    return time.monotonic() + ahead


def _opening() -> bool:
    """Whether threads of the level open sessions in place of those that were closed."""
    return any(thread.name.startswith("hmc-open-") for thread in threading.enumerate())

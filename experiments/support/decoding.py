"""Running token ids through the engine of a level: one sentence at a time, in batches, or at random times."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from hmc.artifact.bundle.manifest import Manifest
from hmc.engine.requests.options import DecodeOptions
from hmc.engine.requests.results import DecodedHypothesis
from hmc.engine.runtime.device import resolve_device
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling.engine import Engine
from hmc.serving.text.tokenizer import BundleTokenizer

Sources = Sequence[Sequence[int]]


@contextmanager
def opened(bundle: Path, manifest: Manifest, level: str, threads: int, max_rows: int = 128) -> Iterator[Engine]:
    """Opens the engine of a level on the CPU. threads: 0 means one for each physical core."""
    chosen = manifest.level(level)
    sessions = LevelSessions.open(bundle, manifest.architecture, chosen, resolve_device("cpu", chosen), threads)
    engine = Engine(sessions, queue_size=8192, max_rows=max_rows)
    try:
        yield engine
    finally:
        engine.close()


def source_ids(bundle: Path, manifest: Manifest, texts: Sequence[str]) -> list[list[int]]:
    """Ids with EOS of texts, by the bundle's tokenizer."""
    tokenizer = BundleTokenizer(bundle, manifest)
    return [tokenizer.encode(text)[0] for text in texts]


def together(engine: Engine, sources: Sources, options: DecodeOptions) -> list[DecodedHypothesis]:
    """Best hypotheses of sentences that are all submitted at once."""
    futures = [engine.submit(ids, options, block=True) for ids in sources]
    return [future.result().hypotheses[0] for future in futures]


def alone(engine: Engine, sources: Sources, options: DecodeOptions) -> list[DecodedHypothesis]:
    """Each sentence is answered before the next is submitted."""
    return [together(engine, [ids], options)[0] for ids in sources]


def in_batches(engine: Engine, sources: Sources, options: DecodeOptions, size: int = 32) -> list[DecodedHypothesis]:
    """Batches of `size` in the order given; each is answered before the next is submitted."""
    groups = [sources[start : start + size] for start in range(0, len(sources), size)]
    return [hypothesis for group in groups for hypothesis in together(engine, group, options)]


def at_random_times(
    engine: Engine, sources: Sources, options: DecodeOptions, seed: int, mean_gap: float
) -> list[DecodedHypothesis]:
    """Submits the sentences in random order at random times, each after a random sentence whose output is dropped.

    mean_gap: mean seconds between arrivals, which are exponentially distributed. The random sentences have 1 to 64
    tokens, may write 1 to 48, and half of them search with another beam size.
    """
    rng, arch = np.random.default_rng(seed), engine.sessions.arch
    futures = {}
    for index in rng.permutation(len(sources)).tolist():
        length = int(rng.integers(1, min(64, arch.max_positions)))
        noise = [*rng.integers(0, arch.source_size, length).tolist(), arch.eos_id]
        noise = [arch.unk_id if token == arch.pad_id else token for token in noise]
        beam = options.beam_size if rng.random() < 0.5 else int(rng.integers(1, 7))
        longest = int(rng.integers(1, min(48, arch.max_positions)))
        engine.submit(noise, replace(options, beam_size=beam, max_length=longest), block=True)
        time.sleep(float(rng.exponential(mean_gap)))
        futures[index] = engine.submit(sources[index], options, block=True)
        time.sleep(float(rng.exponential(mean_gap)))
    return [futures[index].result().hypotheses[0] for index in range(len(sources))]

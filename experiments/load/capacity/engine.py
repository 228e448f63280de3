"""What translating costs, measured in this process: steps by their rows, encoding, pauses, Python's part."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Semaphore
from typing import Any

import numpy as np
import onnxruntime as ort

from experiments.load.capacity.simulation import Curve
from hmc.serving.requests.options import DecodeOptions
from hmc.serving.translator import Translator

RUNNING, MOST_ROWS = (1, 2, 4, 8, 16, 32), 128
"""Sentences that run at the same time, and the rows of one worker."""
EACH = 24
"""Sentences that are translated for each one that runs."""
COPIES = (1, 2, 4, 8, 16)
"""Copies of a sentence that are encoded together."""
SENTENCES, REPEATS = 6, 3
PAUSE_S, PAUSED = 0.06, 100
"""Seconds of a pause, and sentences that are translated after one."""


@dataclass(frozen=True)
class Engine:
    """What was measured in process."""

    step: Curve
    encode: Curve
    steps: tuple[int, ...]
    """Decoder steps of each text."""
    python_s: float
    """Seconds of a step outside ONNX Runtime, with one sentence."""
    waking_s: float
    """Seconds that a sentence takes longer after a pause than right after another one."""


@contextmanager
def graph_seconds() -> Iterator[list[float]]:
    """Yields a list to which every run of a graph by a binding adds its seconds."""
    found: list[float] = []
    run = ort.InferenceSession.run_with_iobinding

    def timed(*args: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return run(*args, **named)
        finally:
            found.append(time.perf_counter() - began)

    ort.InferenceSession.run_with_iobinding = timed
    try:
        yield found
    finally:
        ort.InferenceSession.run_with_iobinding = run


def measure_engine(bundle: Path, level: str, texts: Sequence[str], beam: int) -> Engine:
    """Measures decoder steps and encoding."""
    options = DecodeOptions(beam_size=beam)
    with Translator(bundle, level, device="cpu", threads=1, workers=1) as translator:
        translator.warm_up()
        steps = tuple(answer.target_tokens + 1 for answer in translator.translate(texts, options, segmentation="none"))
        usual = sorted(range(len(texts)), key=lambda n: steps[n])[len(texts) // 2 :][:SENTENCES]
        stepping = [
            tuple(np.median([running_step(translator, texts, steps, options, number) for _ in range(REPEATS)], axis=0))
            for number in RUNNING
            if number * beam <= MOST_ROWS
        ]
        encoding = []
        for copies in COPIES * REPEATS:
            for n in usual:
                before = translator.work.total.encoder_seconds
                translator.translate([texts[n]] * copies, options, segmentation="none")
                encoding.append((copies, translator.work.total.encoder_seconds - before))
        before = translator.work.total.decoder_seconds
        with graph_seconds() as runs:
            for n in usual * REPEATS:
                translator.translate([texts[n]], options, segmentation="none")
        outside = translator.work.total.decoder_seconds - before - sum(runs)
        paused = alone_s(translator, texts[:PAUSED], options, PAUSE_S) - alone_s(translator, texts[:PAUSED], options)
    of_a_step = max(0.0, outside) / (REPEATS * sum(steps[n] for n in usual))
    return Engine(tuple(sorted(stepping)), medians(encoding), steps, of_a_step, max(0.0, paused))


def running_step(
    translator: Translator, texts: Sequence[str], steps: Sequence[int], options: DecodeOptions, running: int
) -> tuple[float, float]:
    """Rows of a decoder step and its seconds, both on average, while so many sentences run."""
    before, free = translator.work.total, Semaphore(running)
    chosen = [n % len(texts) for n in range(EACH * (running + 1))]
    futures = []
    for n in chosen:
        free.acquire()
        futures.append(translator.submit(texts[n], options, block=True))
        futures[-1].add_done_callback(lambda _: free.release())
    for future in futures:
        future.result()
    after = translator.work.total
    seconds = after.decoder_seconds - before.decoder_seconds
    rows = (after.row_seconds - before.row_seconds) / seconds
    return rows, seconds * rows / (options.beam_size * sum(steps[n] for n in chosen))


def alone_s(translator: Translator, texts: Sequence[str], options: DecodeOptions, pause_s: float = 0.0) -> float:
    """Seconds of encoding and decoding of a text, the median over texts that are translated one by one."""
    found = []
    for text in texts:
        time.sleep(pause_s)
        before = translator.work.total
        translator.translate([text], options, segmentation="none")
        after = translator.work.total
        found.append(after.encoder_seconds + after.decoder_seconds - before.encoder_seconds - before.decoder_seconds)
    return statistics.median(found)


def medians(points: Sequence[tuple[float, float]]) -> Curve:
    """The median of the y of each x."""
    by_x: dict[float, list[float]] = {}
    for x, y in points:
        by_x.setdefault(x, []).append(y)
    return tuple((x, float(np.median(by_x[x]))) for x in sorted(by_x))

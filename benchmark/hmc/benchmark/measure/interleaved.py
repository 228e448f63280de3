"""Times several models in turn: in each round all of them translate the same sentences in the same number of steps."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hmc.benchmark.measure.latency import SETTLE_S, requests_of, rotated
from hmc.benchmark.measure.quality import Progress, Translates, silent
from hmc.serving import DecodeOptions


def time_requests(
    translators: Mapping[str, Translates],
    sentences: Sequence[str],
    *,
    batch: int,
    options: DecodeOptions,
    rounds: int,
    progress: Progress = silent,
) -> dict[str, float]:
    """Returns the milliseconds that each model takes for one request of `batch` sentences.

    options: they should fix the length of translations, so that models which translate differently take as many steps.
    Before the first round each model translates one request that is not timed. Of each request the fastest round
    counts: other work on the machine can only make a request slower. Rounds are short, so that a model meets a quiet
    moment in one of them.
    """
    requests = requests_of(sentences, batch)
    for translator in translators.values():
        translator.translate(requests[0], options, segmentation="none")
    names = list(translators)
    seconds = np.zeros((rounds, len(names), len(requests)))
    for turn in range(rounds):
        progress(f"round {turn + 1} of {rounds}")
        for name in rotated(names, turn):
            time.sleep(SETTLE_S)
            for number, request in enumerate(requests):
                start = time.perf_counter()
                translators[name].translate(request, options, segmentation="none")
                seconds[turn, names.index(name), number] = time.perf_counter() - start
    return {name: float(ms) for name, ms in zip(names, best_times(seconds) * 1000.0, strict=True)}


def best_times(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """`[rounds, models, requests]` → `[models]`: the mean over the requests of their fastest round."""
    found: npt.NDArray[np.float64] = seconds.min(0).mean(-1)
    return found

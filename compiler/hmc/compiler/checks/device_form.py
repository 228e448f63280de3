"""Checks of what only levels in device form have: an encoder that writes into slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.compiler.checks.session import Arrays, OpenGraph

SPARE = 3
"""Slots, and positions, that the caches of the encoder's check have beside those that it fills."""
DIRTY = 7.0
"""What these caches hold before."""


def own_slots(encoder: OpenGraph, sentences: int, room: int) -> Arrays:
    """The inputs with which an encoder in device form writes sentence i to slot i of empty caches; else none."""
    if "slots" not in encoder.inputs:
        return {}
    return {"slots": np.arange(sentences)[:, None], **encoder.empty("cross_", B=sentences, S=room)}


def slot_problems(encoder: OpenGraph, source: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]) -> list[str]:
    """What is wrong with an encoder that writes into slots; nothing for other encoders.

    source `[b, s]`, lengths `[b]`. The sentences, and the last one twice, go to scattered slots of caches with other
    contents. They must be the same as in slots of their own, with zeros after them; nothing else may change.
    """
    if "slots" not in encoder.inputs:
        return []
    count, width = source.shape
    slots = np.random.default_rng(0).permutation(count + SPARE)[:count]
    given: Arrays = {"source": source, "source_lengths": lengths}
    alone = encoder.run({**given, **own_slots(encoder, count, width)})
    last_twice = [*range(count), count - 1]
    feeds = {name: value[last_twice] for name, value in {**given, "slots": slots[:, None]}.items()}
    for name, cache in encoder.empty("cross_", B=count + SPARE, S=width + SPARE).items():
        feeds[name] = np.full_like(cache, DIRTY)
    problems = []
    for name, found in encoder.run(feeds).items():
        others = np.setdiff1d(np.arange(len(found)), slots)
        if not np.allclose(found[slots, :, :width], alone[name], rtol=0, atol=_rounding(alone[name])):
            problems.append(f"encoder: {name} depends on the slots of the sentences")
        if found[slots, :, width:].any():
            problems.append(f"encoder: {name} is not 0 after the sentences")
        if not (found[others] == DIRTY).all():
            problems.append(f"encoder: {name} changes slots of other sentences")
    return problems


def _rounding(values: npt.NDArray[Any]) -> float:
    """How far results of batches of two sizes may lie apart: their products may add in another order."""
    return 64 * float(np.finfo(values.dtype).eps) * max(1.0, float(np.abs(values).max()))

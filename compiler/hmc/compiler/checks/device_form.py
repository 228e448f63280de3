"""Checks of graphs that only levels in device form have: an encoder that writes into slots, and resizing of caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.artifact.bundle.manifest import CACHE_FORMS, Level, resize_path
from hmc.compiler.checks.session import Arrays, OpenGraph
from hmc.compiler.precisions.attention import MASKED

SENTENCES, ROWS, ROOM, LARGER = 2, 2, 3, 5
"""Of the caches that are resized: sentences, rows of each, positions before and after."""
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


def resize_problems(bundle: Path, level: Level) -> list[str]:
    """What is wrong with the graphs of a level that resize caches: contents must stay as they are, and new positions
    must hold zeros, or MASKED in `node_bias`."""
    paths = [path for form in CACHE_FORMS if (path := resize_path(level.name, form)) in level.files]
    return [f"{path}: {problem}" for path in paths for problem in _problems_of_resize(OpenGraph.read(bundle, path))]


def _problems_of_resize(graph: OpenGraph) -> list[str]:
    rng, problems = np.random.default_rng(0), []
    sizes = {"B": SENTENCES, "k": ROWS, "R": SENTENCES, "S": ROOM, "T": ROOM, "N": ROOM}
    shaped = [graph.empty(prefix, **sizes) for prefix in ("cross_", "past_", "node_bias")]
    caches = {
        name: rng.standard_normal(cache.shape).astype(cache.dtype) for part in shaped for name, cache in part.items()
    }
    resized = graph.run({**caches, "source_room": np.array([LARGER]), "target_room": np.array([LARGER])})
    graph.close()
    for name, cache in caches.items():
        axis, fill = (3, MASKED) if name == "node_bias" else (2, 0)
        found = np.moveaxis(resized[f"next_{name}"], axis, 0)
        if not np.array_equal(found[:ROOM], np.moveaxis(cache, axis, 0)):
            problems.append(f"{name} loses what it held")
        if len(found) != LARGER or not (found[ROOM:] == np.asarray(fill, cache.dtype)).all():
            problems.append(f"{name} does not have {LARGER - ROOM} new positions that hold {fill:g}")
    return problems

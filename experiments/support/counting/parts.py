"""The measurements of `cuda_counts`, a function each."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from experiments.support.counting.process import Process, Task
from experiments.support.counting.steps import Setting, StepOperations, answering, measure_steps
from experiments.support.counting.workload import (
    NaturalLengths,
    idle,
    in_waves,
    open_level,
    queue_at_once,
    random_source,
)
from hmc.artifact.bundle.external_data import GraphFile
from hmc.artifact.bundle.manifest import VARIANTS, Level
from hmc.engine.requests.caller import Priority
from hmc.engine.requests.options import DecodeOptions, Sampling
from hmc.engine.scheduling.engine import Engine
from hmc.serving.translator import Translator

LONG = 150
"""Tokens of a long translation."""
TURNS = 5
"""Readings of what is held while sentences are translated."""


def steps(process: Process, task: Task) -> dict[str, Any]:
    """Counts and times of a step at each setting."""
    settings = [Setting.parse(text) for text in task.settings]
    with open_level(Path(task.bundle), task.levels[0], max(s.rows for s in settings), longest=LONG) as translator:
        return {str(s): measure_steps(process.watch, process.stand_in, translator, s) for s in settings}


def encoder(process: Process, task: Task) -> dict[str, Any]:
    """Calls of the encoder and of the decoder for sentences that are all queued before the first starts."""
    lengths = NaturalLengths.read(*map(Path, task.text))
    watch, options = process.watch, DecodeOptions(beam_size=task.beam)
    with open_level(Path(task.bundle), task.levels[0], task.rows) as translator:
        arch = translator.manifest.architecture
        answering(watch, arch, lengths.targets)
        sources = list(lengths.sources_of(arch, task.sentences))
        futures = queue_at_once(translator, sources, options)
        written = [len(future.result().hypotheses[0].ids) for future in futures]
    sizes = watch.encoded
    return {
        "sentences": len(written), "encoder_calls": len(sizes), "sentences_a_call": float(np.mean(sizes or [0])),
        "decoder_steps": watch.runs["step"], "other_runs": watch.runs["other"], "bindings": watch.bindings,
        "target_tokens": float(np.mean(written)),
    }  # fmt: skip


def natural(process: Process, task: Task) -> dict[str, Any]:
    """What a level holds after it was loaded, warmed up, has translated, has been idle, and has translated again. Half
    of the sentences are translated greedily, half with beam 4, and half of each are bulk."""
    lengths = NaturalLengths.read(*map(Path, task.text))
    found: dict[str, Any] = {"before": process.held()}
    with open_level(Path(task.bundle), task.levels[0], task.rows) as translator:
        arch = translator.manifest.architecture
        answering(process.watch, arch, lengths.targets)
        found["loaded"] = process.held()
        translator.warm_up()
        found["warm"] = process.held()
        part = task.sentences // TURNS
        for turn in range(TURNS):
            _translate_mixed(translator, list(lengths.sources_of(arch, part, seed=turn)), turn)
            found[f"{(turn + 1) * part}"] = process.held()
        idle(translator)
        found["idle"] = process.held()
        _translate_mixed(translator, list(lengths.sources_of(arch, part)), TURNS)
        found["again"] = process.held()
    del translator
    found["closed"] = process.held()
    return found


def _translate_mixed(translator: Translator, sources: list[list[int]], seed: int) -> None:
    """A quarter of the sentences each: greedy and beam 4, interactive and bulk."""
    for quarter, (beam, priority) in enumerate(product((1, 4), Priority)):
        in_waves(translator, sources[quarter::4], DecodeOptions(beam_size=beam), seed, priority)


def returns(process: Process, task: Task) -> dict[str, Any]:
    """What a level holds each time that its modes have given their pools back, and each time that they have them."""
    found: dict[str, Any] = {"idle": [], "used": []}
    with open_level(Path(task.bundle), task.levels[0], task.rows) as translator:
        arch = translator.manifest.architecture
        answering(process.watch, arch)
        for _ in range(task.sentences):
            for options in every_kind(translator.level):
                sources = [random_source(arch, 24, np.random.default_rng(5)) for _ in range(8)]
                for future in queue_at_once(translator, sources, options):
                    future.result()
            found["used"].append(process.held())
            idle(translator)
            found["idle"].append(process.held())
    return found


def memory(process: Process, task: Task) -> dict[str, Any]:
    """Bytes of the device for some levels and all of their graphs, opened but not run, and then used."""
    bundle, before = Path(task.bundle), process.stand_in.live_bytes
    opened = [open_level(bundle, level, task.rows) for level in task.levels]
    arch = opened[0].manifest.architecture
    for translator in opened:
        engine = translator._engine
        assert isinstance(engine, Engine)
        sessions = engine.sessions
        for variant in (None, *VARIANTS):
            if variant is None or sessions.has(variant):
                sessions.decoder(variant)
    found = {"weights": _weight_bytes(bundle, opened), "opened": process.stand_in.live_bytes - before}
    answering(process.watch, arch, NaturalLengths.read().targets)
    for translator in opened:
        translator.warm_up()
        for options in every_kind(translator.level):
            sources = [random_source(arch, 24, np.random.default_rng(5)) for _ in range(32)]
            for future in queue_at_once(translator, sources, options):
                future.result()
    found["used"] = process.stand_in.live_bytes - before
    for translator in opened:
        idle(translator)
    found["idle"], found["peak"] = process.stand_in.live_bytes - before, process.stand_in.peak_bytes - before
    for translator in opened:
        translator.close()
    return found


def every_kind(level: Level) -> list[DecodeOptions]:
    """Requests that together need every graph of a level."""
    return [
        DecodeOptions(max_length=40),
        DecodeOptions(beam_size=4, max_length=40),
        DecodeOptions(beam_size=4, max_length=40, no_repeat_ngram_size=3),
        DecodeOptions(beam_size=2, max_length=40, repetition_penalty=1.2, alignment=any(level.layout.cross)),
        DecodeOptions(n_best=2, max_length=40, sampling=Sampling(seed=1)),
    ]


def _weight_bytes(bundle: Path, opened: list[Translator]) -> int:
    """Bytes of all different weight files that the graphs of these levels name."""
    files: dict[str, int] = {}
    for level in (translator.level for translator in opened):
        for name in (name for name in level.files if name.endswith(".onnx")):
            for tensor in GraphFile((bundle / name).read_bytes()).stored():
                files[tensor.location] = (bundle / tensor.location).stat().st_size
    return sum(files.values())


def long(process: Process, task: Task) -> dict[str, Any]:
    """Large copies between host and device in batches whose translations grow to LONG tokens: caches moved through the
    host."""
    found, settings = {}, [Setting.parse(text) for text in task.settings]
    with open_level(Path(task.bundle), task.levels[0], max(s.rows for s in settings), longest=LONG) as translator:
        for setting in settings:
            operations = StepOperations(process.stand_in)
            process.watch.listeners[:] = [*answering(process.watch, translator.manifest.architecture), operations]
            process.stand_in.record(True)
            setting.translate(translator, LONG)
            process.stand_in.record(False)
            large = [sums.large_bytes for sums in operations.steps[1:]]
            found[str(setting)] = {
                "tokens": LONG, "large_bytes": sum(large), "steps_with_large_copies": sum(map(bool, large))
            }  # fmt: skip
    return found

"""Making a latency table: models of random sizes are compiled, timed in turn or counted, and costs are fitted.

The models are cut from one checkpoint. Every model translates the same real sentences through the engine, in the same
number of steps, so that times hold all that a request costs: tokenizer, encoder, steps of the decoder, search.
Costs are fitted by least squares, and cannot be negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import numpy.typing as npt

from hmc.artifact.bundle.manifest import Manifest
from hmc.artifact.checkpoint.checkpoint import Checkpoint, checkpoint_digest, load_checkpoint
from hmc.artifact.checkpoint.slimming import slimmed
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.ffn import STACKS, FfnWidths, Stack
from hmc.artifact.model.heads import KINDS, HeadLayout
from hmc.artifact.model.latency import Cost, LatencyTable, Observation, ServingSetting, Sizes
from hmc.artifact.model.layers import RemovedLayers, stack_of
from hmc.artifact.precisions import PRECISIONS, Precision
from hmc.artifact.program.counts import SPEEDS, Request, request_ms
from hmc.artifact.program.operations import read_program
from hmc.artifact.rounding import round_up
from hmc.artifact.tokenizer.tokenizer import open_tokenizer
from hmc.benchmark.measure.latency import time_requests
from hmc.benchmark.measure.machine import this_machine
from hmc.benchmark.measure.quality import Progress, silent
from hmc.compiler.bundle.requests import LevelRequest
from hmc.compiler.bundle.writer import TrialBuilder
from hmc.compiler.pipeline import IN_PROGRAMS
from hmc.serving import DecodeOptions
from hmc.serving.translator import Translator

STEPS = (1, 8, 16, 32, 64)
"""Multiples that numbers of neurons may be rounded up to."""
GAIN = 0.05
"""How much smaller a coarser step has to make the squared error, to be more than chance."""
PARTS = 1 + len(STACKS) + 2 * len(KINDS) + 2 * len(STACKS)
"""Costs that are fitted."""
Floats = npt.NDArray[np.float64]


def fit_table(
    observations: Sequence[Observation], architecture: Architecture, setting: ServingSetting, checkpoint: str = ""
) -> LatencyTable:
    """Fits the costs to the observations that are not held out, and finds the errors on the held-out observations.

    Errors are relative, so that small models count as much as large ones. checkpoint: digest of the model that the
    observed ones were cut from. Raises InvalidRequestError when there are fewer observations than costs.
    """
    fitted = [o for o in observations if not o.held_out]
    if len(fitted) < PARTS:
        raise InvalidRequestError(f"a latency table has {PARTS} costs: measure more than {len(fitted)} models for it")
    best = np.inf
    costs = np.zeros(PARTS)
    step = 1
    for candidate in STEPS:
        if candidate > architecture.ffn_dim:
            break
        fit, error = _fit(fitted, candidate)
        if error < best * (1 - GAIN):
            best = error
            costs = fit
            step = candidate
    fixed, *rest = map(float, costs)
    layers = dict(zip(STACKS, rest, strict=False))
    parts = iter(rest[len(STACKS) :])
    heads = {kind: Cost(open_ms=next(parts), each_ms=next(parts)) for kind in KINDS}
    neurons = {stack: Cost(open_ms=next(parts), each_ms=next(parts), step=step) for stack in STACKS}
    table = LatencyTable(
        setting=setting,
        architecture=architecture,
        checkpoint=checkpoint,
        fixed_ms=fixed,
        layers=layers,
        heads=heads,
        neurons=neurons,
        observations=tuple(observations),
    )
    errors = [abs(table.ms(o.sizes) / o.ms - 1) for o in observations if o.held_out]
    return table.model_copy(
        update={"worst_error": max(errors, default=0.0), "mean_error": mean(errors) if errors else 0.0}
    )


def features(sizes: Sizes, step: int) -> Floats:
    """How often a model has each cost `[PARTS]`: fixed, layers by stack, heads by kind, neurons by stack."""
    row: list[float] = [1.0, *(len(sizes.layers(stack)) for stack in STACKS)]
    for kind in KINDS:
        numbers = [sizes.heads[kind][layer] for layer in sizes.layers(stack_of(kind))]
        row += [sum(n > 0 for n in numbers), sum(numbers)]
    for stack in STACKS:
        numbers = [sizes.neurons[stack][layer] for layer in sizes.layers(stack)]
        row += [sum(n > 0 for n in numbers), sum(round_up(n, step) for n in numbers)]
    return np.array(row)


def _fit(observations: Sequence[Observation], step: int) -> tuple[Floats, float]:
    """Costs `[PARTS]` in ms, and the mean squared relative error."""
    rows = np.stack([features(o.sizes, step) / o.ms for o in observations])
    scale = np.maximum(rows.max(0), 1e-12)  # columns of one size keep the solution exact
    costs = non_negative_least_squares(rows / scale, np.ones(len(rows))) / scale
    return costs, float(np.mean((rows @ costs - 1) ** 2))


def non_negative_least_squares(rows: Floats, wanted: Floats) -> Floats:
    """The x ≥ 0 that minimises ‖rows · x - wanted‖² (Lawson & Hanson 1974, chapter 23). rows `[M, N]`, wanted `[M]`."""
    count = rows.shape[1]
    x = np.zeros(count)
    free = np.zeros(count, bool)
    tolerance = 1e-10 * float(np.abs(rows).sum())
    for _ in range(30 * count):
        gradient = rows.T @ (wanted - rows @ x)
        if free.all() or gradient[~free].max() <= tolerance:
            break
        free[int(np.argmax(np.where(free, -np.inf, gradient)))] = True
        while True:
            trial = np.zeros(count)
            trial[free] = np.linalg.lstsq(rows[:, free], wanted, rcond=None)[0]
            if not free.any() or trial[free].min() > 0:
                break
            negative = free & (trial <= 0)
            shares = x[negative] / np.maximum(x[negative] - trial[negative], 1e-300)
            x = x + float(shares.min()) * (trial - x)
            free &= x > 1e-12
            x[~free] = 0.0
        x = trial
    return x


REMOVED = 0.2
CLOSED = 0.15
"""Share of the layers that are removed, and of the sub-layers that have nothing left."""
MODELS = 28
HELD_OUT = 6
"""Models that a table is fitted to, and models that its error is found on."""
REQUESTS = 4
"""Requests that each model translates in a round, if there are enough sentences."""
WHOLE = "whole"


@dataclass(frozen=True)
class Serving:
    """How the model is served, and how carefully that is measured."""

    precision: Precision = "int8"
    batch: int = 1
    beam: int = 4
    threads: int = 0
    """As in `Translator`; 0 is one per physical core."""
    rounds: int = 15
    """Rounds in which all models are timed."""
    on: Literal["here", "cpu", "cuda"] = "here"
    """What it is served on. `here`: models are timed on this machine's CPU. A kind of device: their step programs are
    counted, and rough speeds of that kind (`hmc.artifact.program.counts`) make milliseconds of the counts."""

    @property
    def device(self) -> str:
        """As `ServingSetting` has it."""
        return "cpu" if self.on == "here" else f"{self.on}, counted"

    def check(self) -> None:
        """Raises InvalidRequestError for a setting that can be neither measured nor counted."""
        device = PRECISIONS[self.precision].device
        if device == "cuda" and self.on == "here":
            raise InvalidRequestError(
                f"{self.precision} runs on CUDA, and latency tables are measured on CPUs: choose fp32, int8 or int4, "
                "or serve on cuda, which counts"
            )
        if self.on != "here" and (device != self.on or self.precision == "int4"):
            known = ", ".join(name for name in IN_PROGRAMS if PRECISIONS[name].device == self.on)
            raise InvalidRequestError(f"serve {self.on}: it counts programs of {known}, not of {self.precision}")


def measure_table(
    checkpoint: Path,
    sentences: Sequence[str],
    serving: Serving,
    *,
    models: int = MODELS,
    held_out: int = HELD_OUT,
    progress: Progress = silent,
) -> LatencyTable:
    """Measures the cost of each part of a model when it is served with the setting `serving`.

    sentences: real source text, at least one request of it; the first REQUESTS requests are used. models, held_out: how
    many the table is fitted to and tested on; counts, which have no noise, need fewer. Raises InvalidRequestError,
    InvalidArtifactError.
    """
    serving.check()
    if serving.on != "here":
        models = min(models, PARTS + 5)
        held_out = min(held_out, 3)
    if models < PARTS:
        raise InvalidRequestError(f"a latency table has {PARTS} costs: measure at least {PARTS} models")
    loaded = load_checkpoint(checkpoint)
    rng = np.random.default_rng(0)
    whole = sizes_of(loaded)
    sizes = {WHOLE: whole}
    sizes |= {f"m{number}": random_sizes(whole, rng) for number in range(1, models + held_out)}
    with TimedModels(checkpoint, loaded, sentences, serving, progress) as timed:
        for name, own in sizes.items():
            if name != WHOLE:
                timed.add(name, cut(loaded, own))
        times = timed.time(list(sizes))
        setting = timed.setting
    names = list(sizes)
    tested = set(names[models:])
    observations = [Observation(sizes=sizes[n], ms=times[n], held_out=n in tested) for n in names]
    return fit_table(observations, loaded.architecture, setting, checkpoint_digest(checkpoint))


class TimedModels:
    """Models that are compiled into a temporary bundle. They are timed in turn with the model from which they are
    cut."""

    def __init__(
        self,
        path: Path,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        serving: Serving,
        progress: Progress = silent,
    ) -> None:
        """path: the directory of `checkpoint`. sentences: source text; the first few calibrate int8 and are timed."""
        serving.check()
        self._path = path
        self._serving = serving
        self._progress = progress
        self._sentences = [s for s in sentences if s.strip()]
        self._request = _Request.from_checkpoint(checkpoint, self._sentences, serving)
        self.setting = ServingSetting(
            precision=serving.precision,
            batch=serving.batch,
            beam=serving.beam,
            source_tokens=self._request.source_tokens,
            target_tokens=self._request.steps,
            threads=serving.threads,
            device=serving.device,
            machine=str(this_machine(["cpu"])) if serving.on == "here" else "",
        )

    def __enter__(self) -> TimedModels:
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="hmc-latency-")))
        self._builder = TrialBuilder([self._path], folder, calibration=self._sentences, progress=self._progress)
        request = LevelRequest(self._path, name=WHOLE)
        whole = self._builder.add(request, self._serving.precision)
        self._fp32 = whole.fp32_layers
        self._names = {WHOLE: whole.name}
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, name: str, model: Checkpoint) -> None:
        """Compiles a model under a name."""
        self._names[name] = self._builder.add_trial(name, model, self._serving.precision, self._fp32).name

    def time(self, names: Sequence[str]) -> dict[str, float]:
        """Milliseconds of one request for the models of these names."""
        manifest = self._builder.manifest([self._builder.levels[self._names[name]] for name in names])
        times = _time(self._builder.folder, manifest, self._request, self._serving, self._progress)
        return {name: times[self._names[name]] for name in names}


def time_levels(
    bundle: Path,
    manifest: Manifest,
    checkpoint: Checkpoint,
    sentences: Sequence[str],
    serving: Serving,
    progress: Progress = silent,
) -> dict[str, float]:
    """Milliseconds of one request for every level of a bundle, timed in turn or counted, as models of a table are."""
    request = _Request.from_checkpoint(checkpoint, [s for s in sentences if s.strip()], serving)
    return _time(bundle, manifest, request, serving, progress)


@dataclass(frozen=True)
class _Request:
    """What is timed."""

    sentences: list[str]
    source_tokens: float
    """Mean length of the sentences, with EOS."""
    steps: int
    """Length of every translation."""

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, sentences: Sequence[str], serving: Serving) -> _Request:
        if len(sentences) < serving.batch:
            raise InvalidRequestError(
                f"batch {serving.batch}: only {len(sentences)} sentences can be timed; give more text"
            )
        timed = list(sentences[: serving.batch * min(REQUESTS, len(sentences) // serving.batch)])
        tokenizer = open_tokenizer(checkpoint.tokenizer)
        source = float(np.mean([len(tokenizer.encode(text)) + 1 for text in timed]))
        return cls(timed, source, max(2, min(round(source), checkpoint.architecture.max_positions - 1)))


def _time(
    bundle: Path, manifest: Manifest, request: _Request, serving: Serving, progress: Progress
) -> dict[str, float]:
    if serving.on != "here":
        asked = Request(serving.batch, serving.beam, round(request.source_tokens), request.steps)
        programs = {level.name: read_program(bundle, level.name) for level in manifest.levels}
        return {name: request_ms(program, asked, SPEEDS[serving.on]) for name, program in programs.items()}
    options = DecodeOptions(beam_size=serving.beam, min_length=request.steps, max_length=request.steps)
    with ExitStack() as opened:
        translators = {
            level.name: opened.enter_context(
                Translator(
                    bundle,
                    level.name,
                    device="cpu",
                    threads=serving.threads,
                    manifest=manifest,
                    cache="none",
                    max_rows=max(128, serving.batch * serving.beam),
                )
            )
            for level in manifest.levels
        }
        return time_requests(
            translators,
            request.sentences,
            batch=serving.batch,
            options=options,
            rounds=serving.rounds,
            progress=progress,
        )


def relative_ms(times: Mapping[str, float], name: str, table: LatencyTable, whole: Sizes) -> float:
    """The latency of the model `name`, as it would be at the speed that the machine had when the table was measured."""
    return times[name] / times[WHOLE] * table.observed_ms(whole)


def sizes_of(checkpoint: Checkpoint) -> Sizes:
    """How much of the model a checkpoint has."""
    return Sizes.from_layout(checkpoint.layout, checkpoint.ffn_widths, checkpoint.removed_layers)


def random_sizes(whole: Sizes, rng: np.random.Generator) -> Sizes:
    """Sizes within `whole`. Every model keeps another share, and each of its layers keeps more or less than this
    share."""
    share = rng.uniform(0.05, 1.0)

    def some(number: int, *, is_kept: bool) -> int:
        if not is_kept or not number or rng.random() < CLOSED:
            return 0
        return int(np.clip(round(number * share * rng.uniform(0.4, 1.6)), 1, number))

    def in_layers(numbers: Sequence[int], stack: Stack) -> tuple[int, ...]:
        return tuple(some(number, is_kept=layer in kept[stack]) for layer, number in enumerate(numbers))

    kept = {stack: _some_layers(whole, stack, rng) for stack in STACKS}
    every = ((stack, layer) for stack, layer, _ in whole.neurons.layers())
    removed = RemovedLayers.from_pairs((stack, layer) for stack, layer in every if layer not in kept[stack])
    heads = {kind: in_layers(whole.heads[kind], stack_of(kind)) for kind in KINDS}
    neurons = FfnWidths(**{stack: in_layers(whole.neurons[stack], stack) for stack in STACKS})
    return Sizes(heads=heads, neurons=neurons, removed=removed)


def _some_layers(whole: Sizes, stack: Stack, rng: np.random.Generator) -> set[int]:
    present = whole.layers(stack)
    kept = [layer for layer in present if rng.random() >= REMOVED]
    return set(kept or present[-1:])


def cut(checkpoint: Checkpoint, sizes: Sizes) -> Checkpoint:
    """The checkpoint with the first heads and neurons of every layer, as many as `sizes` says. It is not trained."""
    rows: dict[str, list[tuple[int, ...]]] = {}
    for kind in KINDS:
        rows[kind] = [row[:n] for row, n in zip(checkpoint.layout[kind], sizes.heads[kind], strict=True)]
    kept: Mapping[Stack, list[range]] = {stack: list(map(range, sizes.neurons[stack])) for stack in STACKS}
    return slimmed(checkpoint, HeadLayout.from_json(rows), kept, sizes.removed)

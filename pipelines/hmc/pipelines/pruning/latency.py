"""Pruning to a latency: measure or count a table, prune by it, compile what it gave, and measure or count that."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from hmc.artifact.bundle.checks import validate
from hmc.artifact.checkpoint.checkpoint import Checkpoint, checkpoint_digest, load_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.latency import LatencyTable, read_table, write_table
from hmc.artifact.storage.files import write_whole
from hmc.artifact.storage.rows import text_lines
from hmc.benchmark.budget.latency_table import (
    WHOLE,
    Serving,
    TimedModels,
    measure_table,
    relative_ms,
    sizes_of,
    time_levels,
)
from hmc.compiler.bundle.requests import LevelRequest
from hmc.compiler.bundle.writer import compile_bundle, progress_steps
from hmc.pipelines.progress import Phase, Steps, quiet
from hmc.pipelines.pruning.text import translate_for_pruning
from hmc.training.data.parallel_text import read_pairs
from hmc.training.pruning.control import compared, train_control
from hmc.training.pruning.request import PruneRequest, check_inputs, check_request
from hmc.training.pruning.run import PruningRun
from hmc.training.pruning.settings import PruneSettings
from hmc.training.pruning.stages import LatencyPlan, check_latency_settings, goals_of, plan_latency_stages
from hmc.training.runs.folder import check_pruning_folder, release

TABLE = "latency.json"
REPORT = "latency-report.json"
BUNDLE = "bundle"
"""What the run folder has beside the checkpoints: the table, what was reached, and the levels to serve."""
SENTENCES = 256
"""Source sentences that models are calibrated on; the first of them are timed."""


@dataclass(frozen=True)
class Targets:
    """Latencies to reach: speed-ups over the model itself, or milliseconds of a request."""

    speedups: tuple[float, ...] = ()
    milliseconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Reached:
    """One level of the bundle, with its measurements from the end of the run."""

    name: str
    checkpoint: str
    goal_ms: float | None
    """None for the model that was pruned."""
    ms: float
    """Latency of one request, measured or counted."""
    speedup: float
    """Over the model that was pruned, measured in turn with it."""
    sizes: str
    """What the model has."""

    @property
    def kept(self) -> bool:
        """Whether the measured latency keeps the goal."""
        return self.goal_ms is None or self.ms <= self.goal_ms


def latency_table(
    checkpoint: Path, sentences: Sequence[str], serving: Serving, file: Path, progress: Callable[[str], None]
) -> LatencyTable:
    """Returns the table of `file` if it was measured for this checkpoint and this serving; otherwise measures it into
    `file`."""
    if file.is_file():
        found = read_table(file)
        if found.checkpoint == checkpoint_digest(checkpoint) and _is_of(found, serving):
            return found
    table = measure_table(checkpoint, sentences, serving, progress=progress)
    write_table(table, file)
    return table


def _is_of(table: LatencyTable, serving: Serving) -> bool:
    found = table.setting
    there = (found.precision, found.batch, found.beam, found.threads, found.device)
    return there == (serving.precision, serving.batch, serving.beam, serving.threads, serving.device)


def prune_to_latency(
    checkpoint: Path,
    out: Path,
    settings: PruneSettings,
    targets: Targets,
    serving: Serving,
    *,
    train: Sequence[str],
    dev: str | None,
    source: Sequence[Path] = (),
    table_file: Path | None = None,
    control: bool = False,
    say: Callable[[str], None] = lambda _: None,
    phase: Phase = quiet,
) -> list[Reached]:
    """Prunes heads, neurons and layers until the model's measured latency keeps each target, slowest target first.

    serving: how the model will be served. train, dev: parallel text; source: plain source text, which the model
    translates first. table_file: a table measured before, on this machine; None: `out`/TABLE, which is measured if it
    is not there. control: also train the whole model for as many updates. The run folder gets a checkpoint for each
    target, BUNDLE with all of them and the model itself, and REPORT. say: is called with lines for the user. phase:
    opens the progress of a phase other than training.

    Returns the levels of the bundle, the model itself first. Raises InvalidRequestError, InvalidArtifactError or
    DeviceUnavailableError with what to do.
    """
    serving.check()
    check_request(settings, (), 0)
    check_inputs(checkpoint, settings, [*train, *([dev] if dev else [])])
    if not (targets.speedups or targets.milliseconds):
        raise InvalidRequestError("give a speed-up or a latency to reach")
    if any(not 1 < speedup < float("inf") for speedup in targets.speedups):
        raise InvalidRequestError("speedups: give numbers above 1, such as 2x")
    names = [goal.name for goal in goals_of(targets.speedups, targets.milliseconds, 1.0)]
    if len(set(names)) < len(names):
        raise InvalidRequestError(f"give each latency target once, not {', '.join(names)}")
    check_latency_settings(settings)
    check_pruning_folder(out, names)
    loaded = load_checkpoint(checkpoint)
    sentences = _sentences(loaded, train, source)
    if table_file:
        table = read_table(table_file)
        if not _is_of(table, serving):
            found = table.setting
            raise InvalidRequestError(
                f"the latency table is of {found.device}, {found.precision}, batch {found.batch}, beam {found.beam} "
                f"and {found.threads} threads: give the same, or leave table_file out"
            )
    else:
        with phase() as (_, step):
            table = latency_table(checkpoint, sentences, serving, out / TABLE, step)
    whole = sizes_of(loaded)
    whole_ms = table.observed_ms(whole)
    say(
        f"latency table: {whole_ms:.2f} ms, of which {table.floor_ms(whole):.2f} ms cannot be pruned; error on models "
        f"that it was not fitted to: {table.mean_error:.1%} on average, {table.worst_error:.1%} at most"
    )
    goals = goals_of(targets.speedups, targets.milliseconds, whole_ms)
    settings = settings.following(loaded.config.provenance)
    stages = plan_latency_stages(LatencyPlan(table, goals), loaded, settings)
    corpora = list(train)
    if source:
        with phase() as (report, step):
            text = translate_for_pruning(
                checkpoint, source, out, [], [], settings, stages=stages, hold_out=not dev, report=report, step=step
            )
        for line in text.losses():
            say(line)
        corpora = [*corpora, text.corpus()]
        dev = dev or text.dev_corpus()
    with _Measuring(checkpoint, loaded, sentences, serving, table) as measuring:
        plan = LatencyPlan(table, goals, measuring.ms)
        request = PruneRequest(checkpoint, (), corpora, dev or "", out, settings, latency=plan)
        try:
            written = PruningRun(request).run()
            trained = list(written)
            if control:
                steps = sum(stage.steps for stage in stages)
                trained.append(train_control(request, steps))
            for path, said in compared(trained).items():
                say(f"{path.name}: {said}")
        finally:
            release(out)
    pruned = dict(zip((goal.name for goal in goals), written, strict=True))
    with phase() as (_, step):
        reached = _measured_levels(checkpoint, pruned, out, sentences, serving, table, step)
    wanted = {goal.name: goal.ms for goal in goals}
    reached = [replace(level, goal_ms=wanted.get(level.name)) for level in reached]
    rows = [asdict(level) | {"kept": level.kept} for level in reached]
    write_whole(out / REPORT, json.dumps(rows, indent=1) + "\n")
    return reached


class _Measuring:
    """Measures models while a run goes on, beside the model that is pruned, which is compiled for the first of them."""

    def __init__(
        self, path: Path, loaded: Checkpoint, sentences: Sequence[str], serving: Serving, table: LatencyTable
    ) -> None:
        self._timed = TimedModels(path, loaded, sentences, serving)
        self._table = table
        self._whole = sizes_of(loaded)
        self._opened = False
        self._count = 0

    def __enter__(self) -> _Measuring:
        return self

    def __exit__(self, *_: object) -> None:
        if self._opened:
            self._timed.__exit__()

    def ms(self, model: Checkpoint) -> float:
        """Milliseconds of a model at the speed that the machine had when the table was measured."""
        if not self._opened:
            self._timed.__enter__()
            self._opened = True
        self._count += 1
        name = f"try{self._count}"
        self._timed.add(name, model)
        return relative_ms(self._timed.time([WHOLE, name]), name, self._table, self._whole)


def _measured_levels(
    checkpoint: Path,
    pruned: dict[str, Path],
    out: Path,
    sentences: Sequence[str],
    serving: Serving,
    table: LatencyTable,
    step: Steps,
) -> list[Reached]:
    """Compiles the model and what was made of it into one bundle, and times all levels in turn."""
    paths = {WHOLE: checkpoint} | pruned
    requests = [LevelRequest(path, name=name) for name, path in paths.items()]
    step.expect(progress_steps(len(requests), (serving.precision,)))
    compile_bundle(requests, out / BUNDLE, precisions=(serving.precision,), calibration=sentences, progress=step)
    manifest = validate(out / BUNDLE)
    names = dict(zip((level.name for level in manifest.levels), paths, strict=True))
    loaded = load_checkpoint(checkpoint)
    times = time_levels(out / BUNDLE, manifest, loaded, sentences, serving, step)
    times = {names[level]: ms for level, ms in times.items()}
    sizes = {name: sizes_of(load_checkpoint(path)) for name, path in paths.items()}
    return [
        Reached(
            name=name,
            checkpoint=str(path),
            goal_ms=None,
            ms=relative_ms(times, name, table, sizes[WHOLE]),
            speedup=times[WHOLE] / times[name],
            sizes=str(sizes[name]),
        )
        for name, path in paths.items()
    ]


def _sentences(loaded: Checkpoint, train: Sequence[str], source: Sequence[Path]) -> list[str]:
    """Returns source sentences of the text that the run reads."""
    if source:
        lines = (line for path in source for line in text_lines(path))
        return list(islice(filter(str.strip, lines), SENTENCES))
    languages = (loaded.config.source_language, loaded.config.target_language)
    pairs = (pair for corpus in train for pair in read_pairs(corpus, languages))
    return list(islice((source_side for source_side, _ in pairs if source_side.strip()), SENTENCES))

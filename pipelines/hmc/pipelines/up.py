"""From a model of another program to a bundle that can be served: import, prune, compile, measure. Finished steps are
kept.

Every step writes a folder that is named after what it does and after a digest of all that it reads, so the same step
is found again, and another model, text or option gives another folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from shutil import rmtree
from typing import Any

from hmc.artifact.bundle.checks import bundle_problems
from hmc.artifact.bundle.manifest import MANIFEST, read_manifest
from hmc.artifact.checkpoint.checkpoint import FORMAT, read_config, read_layout, save_checkpoint
from hmc.artifact.distribution import VERSION
from hmc.artifact.errors import InvalidArtifactError, InvalidRequestError
from hmc.artifact.model.budgets import parse_budgets
from hmc.artifact.model.heads import KINDS
from hmc.artifact.precisions import Precision
from hmc.artifact.storage.files import sha256_file, write_whole
from hmc.benchmark.measure.levels import runs_here
from hmc.benchmark.runner import record, run_benchmark
from hmc.benchmark.settings import BenchmarkSettings
from hmc.compiler.bundle.requests import LevelRequest, read_calibration
from hmc.compiler.bundle.writer import compile_bundle, progress_steps
from hmc.pipelines.importing import import_model, notes_of
from hmc.pipelines.progress import Phase, Report, Step, quiet, silent

ROUNDS = 3
TIMED = 32
"""Times that each level translates the timed sentences, and their number."""
OWN = "translations of the unpruned model"
OWN_FP32 = "translations of the model at fp32"
"""Names of test sets whose references the model wrote itself."""
AGREEMENT = {
    OWN: "the unpruned model on held-out text of --source",
    OWN_FP32: "the model at fp32 on text of --source",
}
"""Test set → what BLEU on it is the agreement with."""
SENTENCES = 200
"""Lines of --source that the model translates to have a test set, where pruning has held out none."""
DIGITS = 12
"""Hex digits of a digest in the name of a folder."""


@dataclass(frozen=True)
class UpSettings:
    """The options of `hmc up`."""

    model: Path
    out: Path
    sources: tuple[Path, ...] = ()
    """Plain source text, one sentence a line: int8 is calibrated on it, and pruning learns from its translations."""
    target_heads: str = ""
    """Budgets as in `hmc prune`, such as `50%,25%`; empty: no pruning."""
    precisions: tuple[Precision, ...] = ()
    """Empty: int8 where there is source text, else fp32."""
    languages: tuple[str | None, str | None] = (None, None)
    prune_steps: int | None = None
    """Updates of closing, and as many of recovery; None: those of `hmc prune`."""
    test_set: tuple[Path, Path] | None = None
    """Source and reference text to score levels on. None: pruned levels are scored on their held-out text, others on
    `SENTENCES` lines of `sources` that the model translates at fp32."""

    def __post_init__(self) -> None:
        if self.target_heads and not self.sources:
            raise InvalidRequestError(
                "target_heads needs sources: plain text in the source language, from which the pruned model learns"
            )
        if missing := [path for path in (*self.sources, *(self.test_set or ())) if not path.is_file()]:
            raise InvalidRequestError(f"{missing[0]}: no such file (paths are relative to the working directory)")


@dataclass(frozen=True)
class StepDone:
    """A step that has ended."""

    name: str
    """import, prune, compile or measure."""
    folder: Path
    kept: bool
    """Whether an earlier run had done it."""


Announce = Callable[[StepDone], None]


def bring_up(settings: UpSettings, done: Announce = silent, say: Step = silent, phase: Phase = quiet) -> Path:
    """Runs the steps that are missing, and returns the bundle.

    done: called after each step. say: called with lines for the user. phase: opens the progress of a step other than
    training, which has its own. Raises as `import_model`, `prune` and `compile_bundle`; what was finished before stays,
    and the next run goes on there.
    """
    checkpoint = _imported(settings, done, say, phase)
    pruned: list[Path] = []
    measured_on = settings.test_set
    if settings.target_heads:
        pruned, held_out = _pruned(settings, checkpoint, done, say, phase)
        measured_on = measured_on or held_out
    bundle = _compiled(settings, checkpoint, pruned, done, phase)
    name = None if settings.test_set is not None else OWN
    if measured_on is None and settings.sources:
        try:
            with phase() as (report, step):
                measured_on = _translated(settings, checkpoint, report, step)
        except InvalidRequestError as error:  # such as lines without the token of a target language
            done(StepDone("measure", bundle, kept=False))
            say(f"No quality and no times are recorded: {error}")
        name = OWN_FP32
    if measured_on is not None:
        _measured(bundle, measured_on, name, done, phase)
        if name is not None:
            say(
                f"The levels' BLEU is their agreement with {AGREEMENT[name]}, not BLEU against people; --eval SRC REF "
                "measures that."
            )
    return bundle


def _imported(settings: UpSettings, done: Announce, say: Step, phase: Phase) -> Path:
    if FORMAT.is_at(settings.model):
        if any(settings.languages):
            raise InvalidRequestError(
                f"{settings.model} is a checkpoint and has its languages: leave out source_language and target_language"
            )
        return settings.model
    model = settings.model
    weights = ""
    if model.is_file() and model.suffix != ".zip":  # the folder is read too
        weights = model.name
        model = model.parent
    with phase() as (_, step):
        step.expect(2)
        step(f"reading {settings.model}")
        key = digest_of(_files(model, settings.out), [*settings.languages, weights])
        folder = settings.out / f"imported-{key}"
        kept = FORMAT.is_at(folder)
        if not kept:
            source, target = settings.languages
            checkpoint = import_model(settings.model, source_language=source, target_language=target)
            step(f"writing {folder}")
            save_checkpoint(checkpoint, folder)
    for note in notes_of(read_config(folder)):
        say(note)
    done(StepDone("import", folder, kept))
    return folder


def _pruned(
    settings: UpSettings, checkpoint: Path, done: Announce, say: Step, phase: Phase
) -> tuple[list[Path], tuple[Path, Path] | None]:
    """The pruned checkpoints, and the text that pruning held out, with the unpruned model's translations."""
    from hmc.pipelines.distillation.results import DEV
    from hmc.pipelines.pruning.text import FOLDER, translate_for_pruning
    from hmc.training.pruning.request import PruneRequest
    from hmc.training.pruning.run import prune
    from hmc.training.pruning.settings import PruneSettings

    key = digest_of(
        chain(_files(checkpoint, settings.out), settings.sources), [settings.target_heads, settings.prune_steps]
    )
    folder = settings.out / f"pruned-{key}"
    marker = folder.with_suffix(".json")
    if kept := marker.is_file():
        written = [folder / name for name in json.loads(marker.read_text(encoding="utf-8"))]
    else:
        targets = parse_budgets(settings.target_heads, KINDS, partial(read_layout, checkpoint))
        options = PruneSettings()
        if settings.prune_steps is not None:
            updates = {"close_steps": settings.prune_steps, "recover_steps": settings.prune_steps}
            options = PruneSettings.model_validate(updates)
        with phase() as (report, step):
            text = translate_for_pruning(
                checkpoint, settings.sources, folder, targets, (), options, report=report, step=step
            )
            for line in text.losses():
                say(line)
            step("pruning")
        written = prune(PruneRequest(checkpoint, targets, [text.corpus()], text.dev_corpus(), folder, options))
        names = [path.relative_to(folder).as_posix() for path in written]
        write_whole(marker, json.dumps(names) + "\n")
    done(StepDone("prune", folder, kept))
    source, target = (folder / FOLDER / name for name in DEV)
    return written, (source, target) if source.is_file() and target.is_file() else None


def _compiled(settings: UpSettings, checkpoint: Path, pruned: list[Path], done: Announce, phase: Phase) -> Path:
    precisions: tuple[Precision, ...] = settings.precisions or (("int8",) if settings.sources else ("fp32",))
    texts = settings.sources[:1]
    files = chain.from_iterable(_files(path, settings.out) for path in (checkpoint, *pruned))
    # another text to measure on: another bundle, with scores of its own
    read = chain(files, settings.sources, settings.test_set or ())
    folder = settings.out / f"bundle-{digest_of(read, precisions)}"
    kept = (folder / MANIFEST).is_file()
    if kept and (problems := bundle_problems(folder)):
        raise InvalidArtifactError(f"bundle {folder}", problems, "Delete this folder, and give the same command again.")
    if not kept:
        requests = [LevelRequest(path) for path in (checkpoint, *pruned)]
        calibration = read_calibration(texts[0]) if texts else ()
        with phase() as (_, step):
            step.expect(progress_steps(len(requests), precisions))
            compile_bundle(requests, folder, precisions=precisions, calibration=calibration, progress=step)
    done(StepDone("compile", folder, kept))
    return folder


def _translated(settings: UpSettings, checkpoint: Path, report: Report, step: Step) -> tuple[Path, Path]:
    """Lines of all the sources, spread evenly, and their translations by the model at fp32. Lines that int8 is
    calibrated on are left out, unless nearly all are such.

    Raises InvalidRequestError if there is nothing that the model can translate.
    """
    from hmc.pipelines.distillation.filters import SUSPICIONS, Filters
    from hmc.pipelines.distillation.results import TRAIN
    from hmc.pipelines.distillation.run import distill
    from hmc.pipelines.distillation.settings import TEACHER, DistillSettings
    from hmc.pipelines.distillation.sources import read_sources, sample

    key = digest_of(chain(_files(checkpoint, settings.out), settings.sources), OWN_FP32)
    folder = settings.out / f"translated-{key}"
    lines = settings.out / f"translated-{key}.source.txt"
    total = sum(file.lines for file in read_sources(settings.sources))
    texts = sample(settings.sources, total, 4 * SENTENCES)
    calibrated = set(read_calibration(settings.sources[0]))
    others = [text for text in texts if text not in calibrated]
    texts = others if len(others) >= SENTENCES // 2 else texts
    stride = max(1, len(texts) // SENTENCES)
    write_whole(lines, "".join(f"{text}\n" for text in texts[::stride][:SENTENCES]))
    every = Filters(keep=SUSPICIONS)
    distill(checkpoint, [lines], folder, DistillSettings(precision="fp32"), every, report=report, step=step)
    rmtree(folder / TEACHER, ignore_errors=True)
    source, target = (folder / name for name in TRAIN)
    return source, target


def _measured(bundle: Path, text: tuple[Path, Path], name: str | None, done: Announce, phase: Phase) -> None:
    """Records quality and the latency of single sentences in the bundle. name: of the test set; None: that of its
    file."""
    levels = [level for level in read_manifest(bundle).levels if runs_here(level.precision)]
    kept = all(level.quality and level.latency for level in levels)
    if levels and not kept:
        source, reference = text
        settings = BenchmarkSettings(
            bundle=bundle,
            src=source,
            ref=reference,
            batches=(1,),
            beams=(4,),
            rounds=ROUNDS,
            latency_limit=TIMED,
            memory=False,
            test_set_name=name,
        )
        with phase() as (_, step):
            record(bundle, run_benchmark(settings, progress=step, expect=step.expect))
    done(StepDone("measure", bundle, kept))


def digest_of(files: Iterator[Path] | tuple[Path, ...], options: Any) -> str:
    """Digest of the content of files, of their names, of options and of HMC's version."""
    found = hashlib.sha256(json.dumps([VERSION, options]).encode())
    for file in files:
        found.update(f"{file.name} {sha256_file(file)}\n".encode())
    return found.hexdigest()[:DIGITS]


def _files(path: Path, out: Path) -> Iterator[Path]:
    """The files of a model, in a fixed order: a folder's own and those of the folders in it, or the file itself.

    out: the folder of all steps, whose files do not count where it lies in the model. Raises InvalidRequestError for a
    path that does not exist.
    """
    if not path.exists():
        raise InvalidRequestError(f"{path}: no such file or folder")
    if path.is_file():
        yield path
        return
    files = (file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    if path.resolve() in out.resolve().parents:
        files = (file for file in files if out.resolve() not in file.resolve().parents)
    yield from sorted(files)


def default_folder(model: str) -> Path:
    """The default folder of all steps: in the working directory, named after the model."""
    name = re.sub(r"\.(zip|npz|bin|safetensors)$", "", Path(model).resolve().name)
    return Path(f"{name}-hmc")

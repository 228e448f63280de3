"""Compiling a bundle at head budgets that are given, and scoring its levels on a test set (`hmc compile --eval`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from hmc.artifact.bundle.manifest import Manifest, read_manifest
from hmc.artifact.errors import DeviceUnavailableError
from hmc.artifact.precisions import Precision
from hmc.benchmark.measure.levels import runs_here
from hmc.benchmark.measure.quality import Progress, measure_quality, record_quality, silent
from hmc.benchmark.measure.text import TestSet
from hmc.compiler.bundle.builder import BundleBuilder
from hmc.compiler.bundle.requests import LevelRequest
from hmc.compiler.bundle.writer import checkpoints_of, compile_levels, forms, progress_steps
from hmc.compiler.lexicon import ShortlistText

Phase = Callable[[int], AbstractContextManager[Progress]]
"""Number of steps → the progress of that many steps, to be called with `LEVEL: STEP` when a step begins."""


def no_progress(_: int) -> AbstractContextManager[Progress]:
    """A phase whose progress is not shown."""
    return nullcontext(silent)


@dataclass(frozen=True)
class CompilePlan:
    """The levels to compile, and the test set to score them on."""

    requests: Sequence[LevelRequest]
    out: Path
    """Bundle directory to write."""
    precisions: Sequence[Precision] = ("fp32",)
    calibration: Sequence[str] = ()
    """Source sentences to calibrate int8 and int4 on."""
    shortlist: ShortlistText | None = None
    """Parallel text: int8 and int4 levels are then also compiled with vocabulary shortlists."""
    test_set: TestSet | None = None
    """With references. None: nothing is scored."""
    beam: int = 4
    inputs: Sequence[Path] = ()
    """Files that are read. Compiling is refused if replacing `out` would delete one of them."""

    @property
    def not_scored(self) -> tuple[Precision, ...]:
        """Precisions that this machine cannot run, so that their levels stay without a score."""
        return tuple(precision for precision in self.precisions if not runs_here(precision))

    def check_scorable(self) -> None:
        """Raises DeviceUnavailableError if there is a test set and this machine can run none of the levels."""
        if self.test_set and len(self.not_scored) == len(self.precisions):
            raise DeviceUnavailableError(
                f"levels in {', '.join(self.not_scored)} run on CUDA, and this machine cannot score them; "
                "leave the test set out, or compile on a machine with CUDA"
            )


def compile_and_score(
    plan: CompilePlan, *, phase: Phase = no_progress, warn: Callable[[str], None] = silent
) -> Manifest:
    """Writes the bundle `plan.out`, with the quality of every level that this machine can run in its manifest.

    phase: opens the progress of a phase, compiling or scoring, from the number of its steps. warn: is called with each
    reason that makes scores less certain. Raises InvalidRequestError, InvalidArtifactError and DeviceUnavailableError;
    `plan.out` is then as it was before.
    """
    plan.check_scorable()
    steps = progress_steps(len(plan.requests), plan.precisions, shortlist=plan.shortlist is not None)
    with BundleBuilder.open(
        plan.out,
        checkpoints_of(plan.requests),
        inputs=plan.inputs,
        calibration=plan.calibration,
        shortlist=plan.shortlist,
    ) as builder:
        with phase(steps) as builder.progress:
            manifest = compile_levels(builder, plan.requests, forms(plan.precisions, plan.shortlist))
        if plan.test_set is None:
            return manifest
        with phase(sum(runs_here(level.precision) for level in manifest.levels)) as progress:
            scores = measure_quality(builder.folder, plan.test_set, beam=plan.beam, progress=progress, warn=warn)
        record_quality(builder.folder, scores)
        return read_manifest(builder.folder)

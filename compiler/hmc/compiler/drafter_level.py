"""The drafter of a bundle: a small model, compiled beside the levels whose translations it guesses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from hmc.artifact.bundle import DRAFTER, ON_CUDA, Precision
from hmc.artifact.bundle_checks import DRAFTS, misfits
from hmc.artifact.checkpoint import Checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.compiler.pipeline import CALIBRATED, LevelDraft


def has_use_for_drafter(precisions: Iterable[Precision]) -> bool:
    """Whether a drafter guesses for any level of these precisions."""
    return any(precision not in ON_CUDA for precision in precisions)


def check_drafter(drafter: Checkpoint, first: Checkpoint, name: str) -> None:
    """Raises InvalidRequestError for a checkpoint, called `name`, that cannot guess what levels of `first` write."""
    problems = misfits(drafter.architecture, first.architecture)
    if drafter.tokenizer != first.tokenizer:
        problems.append("the drafter's tokenizer is another than that of the levels")
    if problems:
        raise InvalidRequestError(
            f"--drafter {name}: {'; '.join(problems)}. Train it with the tokenizer of the levels' checkpoint "
            '(`[tokenizer] model = "CHECKPOINT"` in its recipe)'
        )


def drafter_draft(drafter: Checkpoint, digest: str, bundle: Path, precisions: Sequence[Precision]) -> LevelDraft:
    """The drafter on its way through the passes, beside levels of these precisions: int8 where one of them is
    calibrated, else fp32. Sentences and lexicon are left to be filled in."""
    return LevelDraft(
        name=DRAFTER,
        checkpoint=drafter,
        digest=digest,
        target_heads=drafter.layout.total,
        precision="int8" if any(precision in CALIBRATED for precision in precisions) else "fp32",
        bundle=bundle,
        probe=(),
        calibration=(),
        variants=DRAFTS,
    )

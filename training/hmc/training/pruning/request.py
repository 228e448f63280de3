"""One request of `hmc prune`: the pruning run, then nested fine-tuning, or nested fine-tuning alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.budgets import HeadBudget
from hmc.artifact.model.ffn import NeuronBudget
from hmc.training.pruning.nested import nested_finetune
from hmc.training.pruning.run import PruningRun
from hmc.training.pruning.settings import PruneSettings


def check_request(settings: PruneSettings, neurons: Sequence[NeuronBudget], nested_steps: int) -> None:
    """Raises InvalidRequestError when settings of nested fine-tuning contradict the rest of the request."""
    nested = settings.nested
    if nested.heads != "checkpoints" and not nested_steps:
        raise InvalidRequestError("--nested-heads belongs to --nested-steps: give a number of updates")
    if nested.heads != "checkpoints" and (neurons or settings.l0_lambda is not None):
        raise InvalidRequestError(
            f"--nested-heads {nested.heads} closes no gates: leave --target-ffn and --l0-lambda out"
        )
    if nested_steps and nested.teacher == "in-place" and not settings.distill.active:
        raise InvalidRequestError("--nested-teacher in-place belongs to --distill: give a weight, such as 0.9")
    if nested_steps and nested.teacher == "in-place" and nested.levels != "sandwich":
        raise InvalidRequestError(
            "--nested-teacher in-place needs a largest level in every update: leave out "
            f"--nested-levels {nested.levels}"
        )


def prune(
    source: Path, targets: Sequence[HeadBudget], train: Sequence[str], dev: str, out: Path, settings: PruneSettings,
    neurons: Sequence[NeuronBudget] = (), nested_steps: int = 0,
) -> list[Path]:  # fmt: skip
    """Runs, or resumes, a request; returns the paths of the checkpoints, that of nested fine-tuning last.

    The arguments are those of `PruningRun`. With `settings.nested.heads` other than `checkpoints`, nested fine-tuning
    ranks the heads itself and no gates are closed. Raises InvalidRequestError, InvalidArtifactError or
    DeviceUnavailableError with what to do.
    """
    check_request(settings, neurons, nested_steps)
    if settings.nested.heads != "checkpoints":
        return [nested_finetune(source, [], train, dev, out, settings, nested_steps, targets)]
    written = PruningRun(source, targets, train, dev, out, settings, neurons, nested_steps).run()
    if nested_steps:
        written.append(nested_finetune(source, written, train, dev, out, settings, nested_steps))
    return written

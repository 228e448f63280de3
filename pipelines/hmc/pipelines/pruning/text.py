"""The training and dev text of a pruning run, made from plain source text by the model that is pruned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hmc.artifact.checkpoint.checkpoint import load_checkpoint
from hmc.artifact.model.budgets import HeadBudget
from hmc.artifact.model.ffn import NeuronBudget
from hmc.pipelines.distillation.results import Distilled
from hmc.pipelines.distillation.run import distill
from hmc.pipelines.distillation.settings import DistillSettings
from hmc.pipelines.progress import Report, Step, silent
from hmc.training.pruning.settings import PruneSettings
from hmc.training.pruning.stages import Stage, as_budgets, plan_stages
from hmc.training.runs.folder import check_pruning_folder
from hmc.training.runs.processes import check_processes

FOLDER = "distilled"
"""Folder of the translations within the run folder."""
HELD_OUT = 500
"""Sentence pairs held out as dev text. The number is fixed, since `--eval-sentences` may change when a run resumes."""


def translate_for_pruning(
    checkpoint: Path,
    sources: Sequence[Path],
    out: Path,
    targets: Sequence[int | HeadBudget],
    neurons: Sequence[NeuronBudget],
    settings: PruneSettings,
    *,
    stages: Sequence[Stage] | None = None,
    hold_out: bool = True,
    report: Report = silent,
    step: Step = silent,
) -> Distilled:
    """Translates plain source text with the model that a run in the folder `out` will prune; interrupted, it goes on.

    checkpoint: the model. targets, neurons, settings: of the run; they are checked before the first sentence is
    translated. stages: of a run that was checked already, in place of targets and neurons. hold_out: hold out dev text.
    Its scores say how close the pruned model's translations are to the whole model's. Translations stay in
    `out`/FOLDER. Raises as `distill` and `PruningRun`.
    """
    check_processes(settings.run)
    loaded = load_checkpoint(checkpoint)
    if stages is None:
        budgets = as_budgets(targets, settings)
        stages = plan_stages(budgets, loaded.layout, settings, neurons, loaded.ffn_widths.total)
    check_pruning_folder(out, dict.fromkeys(stage.folder for stage in stages))
    return distill(
        checkpoint,
        sources,
        out / FOLDER,
        # `auto` is decided by each library: PyTorch may have a GPU that ONNX Runtime has not
        DistillSettings(device="cpu" if settings.run.device == "cpu" else "auto", max_length=settings.max_length),
        held_out=HELD_OUT if hold_out else 0,
        report=report,
        step=step,
    )

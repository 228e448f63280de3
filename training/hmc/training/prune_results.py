"""What a pruning run leaves behind: a slim checkpoint a budget, and the gates' trajectory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hmc.artifact.checkpoint import Checkpoint
from hmc.artifact.heads import HeadLayout, HeadScores
from hmc.artifact.slimming import slim_tensors
from hmc.training.convert import export_tensors
from hmc.training.evaluate import Scores
from hmc.training.gating import HeadGates
from hmc.training.prune_settings import PruneSettings
from hmc.training.prune_stages import PruneProgress
from hmc.training.transformer import Transformer

NO_HEAD, NO_GATE = -1e4, 1e4
"""log α stored for a head that the source had lost already, and for one that had no gate and so stays open."""


def pruned_checkpoint(
    source: Checkpoint,
    model: Transformer,
    gates: HeadGates,
    progress: PruneProgress,
    settings: PruneSettings,
    after: Scores,
) -> Checkpoint:
    """The model without its closed heads, with log α, dev scores before and after, and how it came about."""
    assert progress.layout is not None
    layout = HeadLayout.from_json(progress.layout)
    provenance = {
        "command": "hmc prune",
        "from": source.config.provenance,
        "settings": settings.model_dump(mode="json"),
        "unsettled_gates": {str(head): p for head, p in gates.unsettled().items()},
        "decided_by_rank": progress.undecided,
        "trajectory": progress.trajectory,
        "torch": torch.__version__,
    }
    return Checkpoint(
        config=source.config.model_copy(update={"head_layout": layout.to_json(), "provenance": provenance}),
        tensors=slim_tensors(export_tensors(model), source.architecture, source.layout, layout),
        tokenizer=source.tokenizer,
        gates=finite(gates.scores(source.architecture)),
        metrics={"dev_before": progress.before, "dev_after": after.to_json()},
    )


def finite(scores: HeadScores) -> HeadScores:
    """log α with `NO_HEAD` and `NO_GATE` in place of the infinities."""
    return {kind: values.clip(NO_HEAD, NO_GATE) for kind, values in scores.items()}


def describe_undecided(gates: Mapping[str, float]) -> str:
    """One line for people about gates (named KIND.LAYER.HEAD) that were decided by their rank."""
    if not gates:
        return "every gate had settled by itself"
    named = ", ".join(f"{head} (P(open) {probability:.2f})" for head, probability in gates.items())
    return f"{len(gates)} gates had not settled by themselves and were decided by rank: {named}"


def write_trajectory(folder: Path, trajectory: list[dict[str, Any]]) -> None:
    """`trajectory.json`: a list of `{"stage", "step", "open", "open/KIND", "unsettled", …}`, oldest first."""
    temporary = folder / ".trajectory.json"
    temporary.write_text(json.dumps(trajectory, indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / "trajectory.json")

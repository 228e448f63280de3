"""What a pruning run leaves behind: a slim checkpoint a budget, and the gates' trajectory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hmc.artifact.checkpoint import Checkpoint
from hmc.artifact.ffn import STACKS, FfnWidths, Neurons
from hmc.artifact.heads import HeadLayout, HeadScores
from hmc.artifact.slimming import slim_ffn, slim_tensors
from hmc.training.convert import export_tensors
from hmc.training.evaluate import Scores
from hmc.training.gating import HeadGates
from hmc.training.neurons import NeuronGates
from hmc.training.prune_settings import PruneSettings
from hmc.training.prune_stages import PruneProgress
from hmc.training.transformer import Transformer

NO_HEAD, NO_GATE = -1e4, 1e4
"""log α stored for a head that the source had lost already, and for one that had no gate and so stays open."""


def pruned_checkpoint(
    source: Checkpoint,
    model: Transformer,
    gate_sets: tuple[HeadGates | None, NeuronGates | None],
    progress: PruneProgress,
    settings: PruneSettings,
    after: Scores,
) -> Checkpoint:
    """The model without its closed heads and neurons, with log α, dev scores before and after, and how it came about.

    Heads without gates keep the log α of the source.
    """
    gates, neurons = gate_sets
    provenance: dict[str, Any] = {
        "command": "hmc prune",
        "from": source.config.provenance,
        "settings": settings.model_dump(mode="json"),
    }
    config: dict[str, Any] = {"provenance": provenance}
    tensors, stored = export_tensors(model), source.gates
    if gates:
        assert progress.layout is not None
        layout = HeadLayout.from_json(progress.layout)
        config["head_layout"] = layout.to_json()
        tensors = slim_tensors(tensors, source.architecture, source.layout, layout)
        stored = finite(gates.scores(source.architecture))
        provenance["unsettled_gates"] = {str(head): p for head, p in gates.unsettled().items()}
        provenance["decided_by_rank"] = progress.undecided
    if neurons:
        assert progress.neurons is not None
        config["ffn_widths"] = FfnWidths.of(progress.neurons)
        tensors = slim_ffn(tensors, progress.neurons)
        provenance["unsettled_neurons"] = int(neurons.unsettled().sum())
        provenance["neurons_decided_by_rank"] = progress.neurons_undecided
    provenance |= {"trajectory": progress.trajectory, "torch": torch.__version__}
    return Checkpoint(
        config=source.config.model_copy(update=config),
        tensors=tensors,
        tokenizer=source.tokenizer,
        gates=stored,
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


def describe_neurons(kept: Neurons, undecided: int) -> str:
    """One line for people about the neurons that stay."""
    widths = FfnWidths.of(kept)
    left = ", ".join(f"{stack} {list(widths[stack])}" for stack in STACKS)
    how = f"{undecided} gates were decided by rank" if undecided else "every gate had settled by itself"
    return f"{widths.total} feed-forward neurons: {left}; {how}"


def describe_kept(progress: PruneProgress) -> str:
    """What the last closing stage left, in a few words."""
    found = [f"{HeadLayout.from_json(progress.layout).total} heads"] if progress.layout else []
    found += [f"{FfnWidths.of(progress.neurons).total} neurons"] if progress.neurons else []
    return ", ".join(found)


def write_trajectory(folder: Path, trajectory: list[dict[str, Any]]) -> None:
    """`trajectory.json`: a list of `{"stage", "step", "open", "open/KIND", "unsettled", …}`, oldest first."""
    temporary = folder / ".trajectory.json"
    temporary.write_text(json.dumps(trajectory, indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / "trajectory.json")

"""Results of a pruning run: one slim checkpoint for each budget, the trajectory of the gates, lines for the log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.checkpoint.slimming import slim_ffn, slim_layers, slim_tensors, slimmed
from hmc.artifact.model.ffn import STACKS, FfnWidths, Neurons
from hmc.artifact.model.heads import HeadLayout, HeadScores
from hmc.artifact.model.latency import Sizes
from hmc.artifact.model.layers import RemovedLayers
from hmc.artifact.storage.files import write_whole
from hmc.training.model.checkpoints import export_tensors
from hmc.training.model.evaluate import Scores
from hmc.training.model.transformer import Transformer
from hmc.training.pruning.gate_sets import HeadGates, NeuronGates
from hmc.training.pruning.settings import PruneSettings
from hmc.training.pruning.stages import PruneProgress

NO_HEAD = -1e4
NO_GATE = 1e4
"""log α stored for a head that the source does not have, and for a head without a gate, which stays open."""


def pruned_checkpoint(
    source: Checkpoint,
    model: Transformer,
    gate_sets: tuple[HeadGates | None, NeuronGates | None],
    progress: PruneProgress,
    settings: PruneSettings,
    after: Scores,
) -> Checkpoint:
    """Returns the model without its closed heads and neurons as a checkpoint with log α, dev scores and provenance.

    Without gates on heads, the log α of the source are kept.
    """
    gates, neurons = gate_sets
    provenance: dict[str, Any] = {
        "command": "hmc prune",
        "from": source.config.provenance,
        "settings": settings.model_dump(mode="json"),
    }
    config: dict[str, Any] = {"provenance": provenance}
    tensors = export_tensors(model)
    stored = source.gates
    if gates:
        assert progress.heads is not None
        config["head_layout"] = progress.layout
        tensors = slim_tensors(tensors, source.architecture, source.layout, progress.heads)
        stored = finite(gates.scores(source.architecture))
        provenance["unsettled_gates"] = {str(head): p for head, p in gates.unsettled().items()}
        provenance["decided_by_rank"] = progress.undecided
    if neurons:
        assert progress.neurons is not None
        config["ffn_widths"] = FfnWidths.from_neurons(progress.neurons)
        tensors = slim_ffn(tensors, source.architecture, progress.neurons)
    if progress.removed is not None:
        config["removed_layers"] = progress.removed
        tensors = slim_layers(tensors, progress.removed)
        provenance["latency"] = progress.measured
        provenance["gates_decided_by_rank"] = progress.neurons_undecided
    elif neurons:
        provenance["unsettled_neurons"] = int(neurons.is_unsettled().sum())
        provenance["neurons_decided_by_rank"] = progress.neurons_undecided
    provenance |= {"trajectory": progress.trajectory, "torch": torch.__version__}
    return Checkpoint(
        config=source.config.model_copy(update=config),
        tensors=tensors,
        tokenizer=source.tokenizer,
        gates=stored,
        metrics={"dev_before": progress.before, "dev_after": after.to_json()},
    )


def cut_model(
    source: Checkpoint, model: Transformer, layout: HeadLayout, neurons: Neurons, removed: RemovedLayers
) -> Checkpoint:
    """Returns the model as it is now, with these heads, neurons and layers, as a checkpoint without provenance."""
    slim = slimmed(replace(source, tensors=export_tensors(model)), layout, neurons, removed)
    return replace(slim, config=slim.config.model_copy(update={"provenance": {}}), metrics={})


def finite(scores: HeadScores) -> HeadScores:
    """Replaces infinite log α by `NO_HEAD` and `NO_GATE`."""
    return {kind: values.clip(NO_HEAD, NO_GATE) for kind, values in scores.items()}


def describe_undecided(gates: Mapping[str, float]) -> str:
    """Returns a line about the gates (named KIND.LAYER.HEAD) that were decided by rank, with their P(g ≠ 0)."""
    if not gates:
        return "every gate had settled by itself"
    return f"{len(gates)} gates had not settled by themselves and were decided by rank: {_named(gates)}"


def describe_unsettled(gates: HeadGates) -> str:
    """Returns a line about the gates that have not settled in the paper's λ form, which forces no decision."""
    unsettled = {str(head): probability for head, probability in gates.unsettled().items()}
    if not unsettled:
        return "every gate has settled"
    return f"{len(unsettled)} gates have not settled, heads with log α > 0 stay: {_named(unsettled)}"


def _named(gates: Mapping[str, float]) -> str:
    return ", ".join(f"{head} (P(open) {probability:.2f})" for head, probability in gates.items())


def describe_neurons(kept: Neurons, undecided: int) -> str:
    """Returns a line about the neurons that stay. undecided: number of gates that were decided by rank."""
    widths = FfnWidths.from_neurons(kept)
    kept_widths = ", ".join(f"{stack} {list(widths[stack])}" for stack in STACKS)
    how = f"{undecided} gates were decided by rank" if undecided else "every gate had settled by itself"
    return f"{widths.total} feed-forward neurons: {kept_widths}; {how}"


def describe_choice(sizes: Sizes, ms: float, undecided: int) -> str:
    """Returns a line about what stays at a latency. undecided: number of gates that were decided by rank."""
    how = f"{undecided} gates were decided by rank" if undecided else "every gate had settled by itself"
    return f"{ms:.2f} ms by the table: {sizes}; {how}"


def describe_kept(progress: PruneProgress) -> str:
    """Returns the numbers of heads and neurons that the last closing stage left, in words."""
    parts = [f"{progress.heads.total} heads"] if progress.heads else []
    parts += [f"{FfnWidths.from_neurons(progress.neurons).total} neurons"] if progress.neurons else []
    if progress.removed_layers is not None and (removed := sum(map(len, progress.removed_layers.values()))):
        parts.append(f"{removed} layers removed")
    return ", ".join(parts)


def write_trajectory(folder: Path, trajectory: list[dict[str, Any]]) -> None:
    """Writes `trajectory.json` atomically: `{"stage", "step", "open", "open/KIND", "unsettled", …}`, oldest first."""
    write_whole(folder / "trajectory.json", json.dumps(trajectory, indent=1) + "\n")

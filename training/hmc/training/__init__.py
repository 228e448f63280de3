"""Training translation Transformers, measuring and pruning their attention heads (PyTorch).

Public names are loaded on first use, so that importing this package does not load PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hmc.artifact.lazy import lazy_names

if TYPE_CHECKING:
    from hmc.training.data.batches import Batch, make_batch
    from hmc.training.data.vocabulary import Vocabulary
    from hmc.training.headmask.mask import HeadMask
    from hmc.training.headmask.spec import HeadMaskSpec
    from hmc.training.model.beam_search import Hypothesis, beam_search
    from hmc.training.model.checkpoints import average_tensors, export_tensors, model_from_checkpoint
    from hmc.training.model.evaluate import Scores, evaluate, score, translate
    from hmc.training.model.gates import (
        DeterministicGate,
        FixedMask,
        Gate,
        HardConcrete,
        ImportanceGate,
        OpenGate,
        SampledGate,
    )
    from hmc.training.model.importance import corpus_importance, sentence_importance
    from hmc.training.model.regimes import freeze, mask_neurons, mask_to_layout, open_gates
    from hmc.training.model.transformer import Transformer, build_transformer
    from hmc.training.pruning.gate_sets import HeadGates, NeuronGates
    from hmc.training.pruning.nested import nested_finetune
    from hmc.training.pruning.run import PruningRun, prune
    from hmc.training.pruning.settings import PruneSettings
    from hmc.training.runs.recipe import Recipe, load_recipe
    from hmc.training.trainer.trainer import TrainingRun, train

__all__ = [
    "Batch",
    "DeterministicGate",
    "FixedMask",
    "Gate",
    "HardConcrete",
    "HeadGates",
    "HeadMask",
    "HeadMaskSpec",
    "Hypothesis",
    "ImportanceGate",
    "NeuronGates",
    "OpenGate",
    "PruneSettings",
    "PruningRun",
    "Recipe",
    "SampledGate",
    "Scores",
    "TrainingRun",
    "Transformer",
    "Vocabulary",
    "average_tensors",
    "beam_search",
    "build_transformer",
    "corpus_importance",
    "evaluate",
    "export_tensors",
    "freeze",
    "load_recipe",
    "make_batch",
    "mask_neurons",
    "mask_to_layout",
    "model_from_checkpoint",
    "nested_finetune",
    "open_gates",
    "prune",
    "score",
    "sentence_importance",
    "train",
    "translate",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "hmc.training.data.batches": ("Batch", "make_batch"),
        "hmc.training.data.vocabulary": ("Vocabulary",),
        "hmc.training.headmask.mask": ("HeadMask",),
        "hmc.training.headmask.spec": ("HeadMaskSpec",),
        "hmc.training.model.beam_search": ("Hypothesis", "beam_search"),
        "hmc.training.model.checkpoints": ("average_tensors", "export_tensors", "model_from_checkpoint"),
        "hmc.training.model.evaluate": ("Scores", "evaluate", "score", "translate"),
        "hmc.training.model.gates": (
            "DeterministicGate", "FixedMask", "Gate", "HardConcrete", "ImportanceGate", "OpenGate", "SampledGate",
        ),
        "hmc.training.model.importance": ("corpus_importance", "sentence_importance"),
        "hmc.training.model.regimes": ("freeze", "mask_neurons", "mask_to_layout", "open_gates"),
        "hmc.training.model.transformer": ("Transformer", "build_transformer"),
        "hmc.training.pruning.gate_sets": ("HeadGates", "NeuronGates"),
        "hmc.training.pruning.nested": ("nested_finetune",),
        "hmc.training.pruning.run": ("PruningRun", "prune"),
        "hmc.training.pruning.settings": ("PruneSettings",),
        "hmc.training.runs.recipe": ("Recipe", "load_recipe"),
        "hmc.training.trainer.trainer": ("TrainingRun", "train"),
    },
)  # fmt: skip

"""Training translation Transformers, measuring and pruning their attention heads (PyTorch).

Public names are loaded on first use, so that importing this package does not load PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hmc.artifact.lazy import lazy_names

if TYPE_CHECKING:
    from hmc.training.data.batches import Batch as Batch
    from hmc.training.data.batches import make_batch as make_batch
    from hmc.training.data.vocabulary import Vocabulary as Vocabulary
    from hmc.training.headmask.mask import HeadMask as HeadMask
    from hmc.training.headmask.spec import HeadMaskSpec as HeadMaskSpec
    from hmc.training.model.beam_search import Hypothesis as Hypothesis
    from hmc.training.model.beam_search import beam_search as beam_search
    from hmc.training.model.checkpoints import average_tensors as average_tensors
    from hmc.training.model.checkpoints import export_tensors as export_tensors
    from hmc.training.model.checkpoints import model_from_checkpoint as model_from_checkpoint
    from hmc.training.model.evaluate import Scores as Scores
    from hmc.training.model.evaluate import evaluate as evaluate
    from hmc.training.model.evaluate import score as score
    from hmc.training.model.evaluate import translate as translate
    from hmc.training.model.gates import FixedMask as FixedMask
    from hmc.training.model.gates import Gate as Gate
    from hmc.training.model.gates import HardConcrete as HardConcrete
    from hmc.training.model.gates import ImportanceGate as ImportanceGate
    from hmc.training.model.gates import OpenGate as OpenGate
    from hmc.training.model.gates import SampledGate as SampledGate
    from hmc.training.model.importance import corpus_importance as corpus_importance
    from hmc.training.model.importance import sentence_importance as sentence_importance
    from hmc.training.model.regimes import freeze as freeze
    from hmc.training.model.regimes import mask_neurons as mask_neurons
    from hmc.training.model.regimes import mask_to_layout as mask_to_layout
    from hmc.training.model.regimes import open_gates as open_gates
    from hmc.training.model.transformer import Transformer as Transformer
    from hmc.training.model.transformer import build_transformer as build_transformer
    from hmc.training.pruning.gate_sets import HeadGates as HeadGates
    from hmc.training.pruning.gate_sets import NeuronGates as NeuronGates
    from hmc.training.pruning.nested import nested_finetune as nested_finetune
    from hmc.training.pruning.request import PruneRequest as PruneRequest
    from hmc.training.pruning.run import PruningRun as PruningRun
    from hmc.training.pruning.run import prune as prune
    from hmc.training.pruning.settings import PruneSettings as PruneSettings
    from hmc.training.runs.recipe import Recipe as Recipe
    from hmc.training.runs.recipe import load_recipe as load_recipe
    from hmc.training.trainer.trainer import TrainingRun as TrainingRun
    from hmc.training.trainer.trainer import train as train

__getattr__, __dir__, __all__ = lazy_names(
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
            "FixedMask", "Gate", "HardConcrete", "ImportanceGate", "OpenGate", "SampledGate",
        ),
        "hmc.training.model.importance": ("corpus_importance", "sentence_importance"),
        "hmc.training.model.regimes": ("freeze", "mask_neurons", "mask_to_layout", "open_gates"),
        "hmc.training.model.transformer": ("Transformer", "build_transformer"),
        "hmc.training.pruning.gate_sets": ("HeadGates", "NeuronGates"),
        "hmc.training.pruning.nested": ("nested_finetune",),
        "hmc.training.pruning.request": ("PruneRequest",),
        "hmc.training.pruning.run": ("PruningRun", "prune"),
        "hmc.training.pruning.settings": ("PruneSettings",),
        "hmc.training.runs.recipe": ("Recipe", "load_recipe"),
        "hmc.training.trainer.trainer": ("TrainingRun", "train"),
    },
)  # fmt: skip

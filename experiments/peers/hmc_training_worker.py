"""Steps of HMC's own training, one variant at a time; see `experiments.training_cost`.

python -m experiments.peers.hmc_training_worker '{"recipe", "overrides", "out", "device", "masked"}'
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from experiments.support.worker import serve
from hmc.artifact.model.architecture import Architecture
from hmc.training.data.batches import Batch, make_batch
from hmc.training.headmask.mask import HeadMask
from hmc.training.headmask.spec import HeadMaskSpec
from hmc.training.model.importance import corpus_importance
from hmc.training.model.regimes import open_gates
from hmc.training.model.transformer import build_transformer
from hmc.training.pruning.gate_sets import HeadGates
from hmc.training.pruning.pressure import l0_penalty
from hmc.training.runs.optimizer import make_optimizer
from hmc.training.runs.processes import make_fabric
from hmc.training.runs.recipe import Recipe, RunSection, load_recipe
from hmc.training.runs.updater import Updater
from hmc.training.trainer.assemble import architecture, make_vocabulary

INITIAL, STRENGTH = 2.0, 1e-2
"""log α that gates start at, and λ of the L0 penalty: neither changes what a step costs."""


class Trainee:
    """A model and its optimiser at one precision; every variant trains the same weights."""

    def __init__(self, recipe: Recipe, arch: Architecture, run: RunSection, masked: int) -> None:
        settings = recipe.train
        self.fabric, self.label_smoothing = make_fabric(run), settings.label_smoothing
        torch.manual_seed(settings.seed)
        self.model = build_transformer(arch, dropout=settings.dropout)
        layout, weights = arch.full_layout(), list(self.model.parameters())
        self.gates = HeadGates(self.model, layout, INITIAL)
        self.masks = {
            method: HeadMask(
                self.model, layout, HeadMaskSpec.parse(f"{method}:{masked}"), settings.seed, self.label_smoothing
            )
            for method in ("random", "important")
        }
        self.waiting: deque[Any] = deque()
        groups: list[dict[str, Any]] = [
            {"params": weights, "name": "weights"},
            {"params": self.gates.parameters(), "name": "gates"},
        ]
        self.updater = Updater(
            self.fabric, self.model, make_optimizer(groups, settings, self.model), self._batches(), settings
        )

    def _batches(self) -> Iterator[Batch]:
        while True:
            source, target = self.waiting.popleft()
            yield make_batch(source, target, self.model.arch.pad_id)

    def steps(self, variant: str, first: int, batches: list[Any]) -> float:
        """Training steps number `first` and on, a batch each; returns the last loss in nats per token."""
        self.waiting.extend(batches)
        self.updater.masking = self.masks[variant].applied if variant in self.masks else None
        penalty = None
        if variant == "gates":
            self.gates.sampled()
            penalty = self._penalty
        else:
            open_gates(self.model)
        self.model.train()
        loss = 0.0
        for step in range(first, first + len(batches)):
            loss = self.updater.update(step, penalty).loss
        return loss

    def importance(self, batches: list[Any]) -> float:
        """One pass of I_h over the batches; returns the largest."""
        open_gates(self.model)
        made = (make_batch(source, target, self.model.arch.pad_id) for source, target in batches)
        with self.fabric.autocast():
            scores = corpus_importance(self.model, made)
        return max(float(values.max()) for values in scores.values())

    def _penalty(self) -> torch.Tensor:
        return l0_penalty(self.gates.open_probabilities(), STRENGTH)


def load() -> tuple[Any, Callable[[Any], Any]]:
    """Request: `{"variant", "precision", "step", "batches"}`; answer: `{"seconds", "value"}`."""
    given = json.loads(sys.argv[1])
    recipe = load_recipe(Path(given["recipe"]), given["overrides"])
    arch = architecture(recipe, make_vocabulary(recipe, Path(given["out"])))
    trainees: dict[str, Trainee] = {}

    def answer(request: Any) -> Any:
        precision, batches = request["precision"], request["batches"]
        if precision not in trainees:
            run = RunSection(device=given["device"], precision=precision)
            trainees[precision] = Trainee(recipe, arch, run, given["masked"])
        trainee, variant = trainees[precision], request["variant"]
        began = time.perf_counter()
        if variant == "importance":
            value = trainee.importance(batches)
        else:
            value = trainee.steps(variant, request["step"], batches)
        if trainee.fabric.device.type == "cuda":
            torch.cuda.synchronize()
        return {"seconds": time.perf_counter() - began, "value": value}

    return {"threads": torch.get_num_threads(), "torch": torch.__version__}, answer


if __name__ == "__main__":
    serve(load)

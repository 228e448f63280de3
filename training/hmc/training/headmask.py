"""HeadMask (Sun et al. 2021, section 3): training with some heads masked, so that the model depends on none of them.

The paper's *batch* is here everything that goes into one optimiser update. Accumulated batches and processes are only
ways to fit that batch into memory, so all of them share one mask: the gradient is that of one loss, whatever the split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from hmc.artifact.heads import HeadLayout
from hmc.training.batches import Batch
from hmc.training.gates import FixedMask
from hmc.training.headmask_spec import HeadMaskSpec
from hmc.training.importance import sentence_importance
from hmc.training.transformer import Transformer

STREAM = 0x4D61736B
"""Keeps the draws of masks apart from other draws by the same seed."""


class HeadMask:
    """Masks N heads in each update; outside `applied()` every head is open, so evaluation needs no care."""

    def __init__(
        self, model: Transformer, layout: HeadLayout, spec: HeadMaskSpec, seed: int, label_smoothing: float
    ) -> None:
        """layout: the model's own. label_smoothing: of the training loss, which importance is the gradient of.

        Raises InvalidRequestError when the model has too few heads.
        """
        self.model, self.spec, self.seed, self.label_smoothing = model, spec, seed, label_smoothing
        self.number = spec.number(layout)
        in_scope = [head.kind in spec.kinds for head in layout.heads()]
        self.total = len(in_scope)
        self.scope = np.flatnonzero(in_scope)
        """Positions in the order of `model.attentions()` of the heads that may be masked."""

    @contextmanager
    def applied(self, fabric: Fabric, step: int, batches: Sequence[Batch]) -> Iterator[Tensor]:
        """Masks N heads for the update `step` made of this process's `batches`; yields the mask `[total]`, 1 = open."""
        mask = self._random(step, fabric.device) if self.spec.method == "random" else self._important(fabric, batches)
        attentions = [attention for *_, attention in self.model.attentions() if attention.heads]
        former = [attention.gate for attention in attentions]
        for attention, part in zip(attentions, mask.split_with_sizes([a.heads for a in attentions]), strict=True):
            attention.gate = FixedMask(part)
        try:
            yield mask
        finally:
            for attention, gate in zip(attentions, former, strict=True):
                attention.gate = gate

    def _random(self, step: int, device: torch.device) -> Tensor:
        """Random-N (algorithm 1). The draw depends on (seed, step) alone: equal in all processes and on resume."""
        drawn = np.random.default_rng([self.seed, step, STREAM]).choice(self.scope, self.number, replace=False)
        mask = np.ones(self.total, np.float32)
        mask[drawn] = 0
        return torch.from_numpy(mask).to(device, non_blocking=True)

    def _important(self, fabric: Fabric, batches: Sequence[Batch]) -> Tensor:
        """Impt-N (algorithm 2): forward, backward without an update, then mask the N heads of highest I_h.

        The sum over sentences ranks heads as the mean does. It stays on the device: nothing waits for it.
        """
        importance = torch.zeros(self.total, device=fabric.device)
        with fabric.autocast():
            for batch in batches:
                importance += sentence_importance(self.model, batch, self.label_smoothing).sum(0)
        if fabric.world_size > 1:
            reduced: Any = fabric.all_reduce(importance, reduce_op="sum")
            importance = torch.as_tensor(reduced)
        scope = torch.from_numpy(self.scope).to(fabric.device, non_blocking=True)
        top = scope[importance[scope].topk(self.number).indices]
        return torch.ones(self.total, device=fabric.device).index_fill_(0, top, 0.0)

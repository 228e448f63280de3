"""HeadMask (Sun et al. 2021, section 3): every update masks some heads, so that the model depends on none of them.

The paper's *batch* is one optimiser update here. Accumulated batches and several processes only split that batch to fit
into memory, so one mask holds for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from hmc.artifact.model.heads import HeadLayout
from hmc.training.data.batches import Batch, to_device
from hmc.training.headmask.spec import HeadMaskSpec
from hmc.training.model.gates import FixedMask
from hmc.training.model.importance import sentence_importance
from hmc.training.model.transformer import Transformer

STREAM = 0x4D61736B
"""Part of the seed of masks, so that other draws from the same seed are independent of them."""


class HeadMask:
    """Masks N heads in each update. Outside `applied()` every head is open, so evaluation uses the whole model."""

    def __init__(
        self, model: Transformer, layout: HeadLayout, spec: HeadMaskSpec, seed: int, label_smoothing: float
    ) -> None:
        """layout: the model's head layout. label_smoothing: that of the training loss, whose gradient importance is.

        Raises InvalidRequestError when the model has too few heads for `spec`.
        """
        self.model, self.spec, self.seed, self.label_smoothing = model, spec, seed, label_smoothing
        self.number = spec.number(layout)
        in_scope = [head.kind in spec.kinds for head in layout.heads()]
        self.total = len(in_scope)
        self.scope = np.flatnonzero(in_scope)
        """Positions of the heads that may be masked, in the order of `model.attentions()`."""
        cross = np.flatnonzero([head.kind == "cross" for head in layout.heads()])
        self.cross = cross if np.isin(cross, self.scope).all() else cross[:0]
        """Positions of the cross-attention heads if they may be masked. One of them stays open in every update: without
        any, the decoder does not see the source."""

    @contextmanager
    def applied(self, fabric: Fabric, step: int, batches: Sequence[Batch]) -> Iterator[Tensor]:
        """Masks N heads during update `step`, whose share for this process is `batches`.

        Yields the mask `[total]`, 1 = open. Random masks need no batches. The former gates return at the end.
        """
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
        """Random-N (algorithm 1). The draw depends on (seed, step) alone, so processes and resumed runs agree."""
        drawn = np.random.default_rng([self.seed, step, STREAM]).choice(self.scope, self.number, replace=False)
        mask = np.ones(self.total, np.float32)
        mask[drawn] = 0
        if len(self.cross) and not mask[self.cross].any():
            first = drawn[np.isin(drawn, self.cross)][0]
            mask[self.scope[mask[self.scope] > 0][0]] = 0  # N heads stay masked: another one in place of the first
            mask[first] = 1
        return to_device(torch.from_numpy(mask), device)

    def _important(self, fabric: Fabric, batches: Sequence[Batch]) -> Tensor:
        """Impt-N (algorithm 2): computes importance by a forward and a backward pass, masks the N heads of highest I_h.

        The sum over sentences ranks heads as the mean does. It stays on the device, so a GPU does not wait.
        """
        importance = torch.zeros(self.total, device=fabric.device)
        with fabric.autocast():
            for batch in batches:
                importance += sentence_importance(self.model, batch, self.label_smoothing).sum(0)
        if fabric.world_size > 1:
            reduced: Any = fabric.all_reduce(importance, reduce_op="sum")
            importance = torch.as_tensor(reduced)
        scope = to_device(torch.from_numpy(self.scope), fabric.device)
        if len(self.cross):  # the least important one is masked only where all of them would be
            cross = to_device(torch.from_numpy(self.cross), fabric.device)
            importance = importance.index_fill(0, cross[importance[cross].argmin(0, keepdim=True)], -torch.inf)
        top = scope[importance[scope].topk(self.number).indices]
        return torch.ones(self.total, device=fabric.device).index_fill_(0, top, 0.0)

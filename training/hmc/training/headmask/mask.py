"""HeadMask (Sun et al. 2021, section 3): every update masks some heads, so that the model depends on none of them.

The paper's *batch* is one optimiser update here. Accumulated batches and several processes only split that batch to fit
into memory, so one mask holds for all of them, unless the settings say `part`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning_fabric import Fabric
from torch import Tensor

from hmc.artifact.model.heads import HeadLayout
from hmc.training.data.batches import Batch, to_device
from hmc.training.headmask.log import MaskLog
from hmc.training.headmask.spec import HeadMaskSpec
from hmc.training.model.gates import FixedMask
from hmc.training.model.importance import heads_of_attentions, importance_of, importance_sums
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
        heads = list(layout.heads())
        self.total = len(heads)
        self.widths = heads_of_attentions(model)
        """Heads of every attention that has any; a mask is divided among them."""
        scope = np.flatnonzero([head.kind in spec.kinds for head in heads])
        self.groups: list[tuple[npt.NDArray[np.int64], int]] = [(scope, self.number)]
        """Positions of heads that may be masked, in the order of `model.attentions()`, and how many of them are: all
        heads in scope, or those of every attention."""
        if spec.per_attention:
            starts = np.cumsum([0, *self.widths])
            kinds = [kind for kind, _, attention in model.attentions() if attention.heads]
            self.groups = [
                (np.arange(start, start + width), spec.masked_of(width))
                for kind, start, width in zip(kinds, starts, self.widths, strict=False)
                if kind in spec.kinds and spec.masked_of(width)
            ]
        cross = np.flatnonzero([head.kind == "cross" for head in heads])
        self.cross = cross if np.isin(cross, scope).all() and not spec.per_attention else cross[:0]
        """Positions of the cross-attention heads if all of them may be masked. One of them stays open in every update:
        without any, the decoder does not see the source."""
        self.log = MaskLog(layout)

    @contextmanager
    def applied(self, fabric: Fabric, step: int, batches: Sequence[Batch]) -> Iterator[Callable[[int], None]]:
        """Masks N heads during update `step`, whose share for this process is `batches`.

        Yields what puts the mask of the n-th of `batches` on the model, to be called before its forward pass. The
        former gates return at the end.
        """
        attentions = [attention for *_, attention in self.model.attentions() if attention.heads]
        former = [attention.gate for attention in attentions]
        masks = self.masks(fabric, step, batches) if step > self.spec.after else None
        if masks is not None:
            self.log.add(masks)

        def put(part: int) -> None:
            if masks is None or part >= len(masks):  # the only mask, put on before, holds for all parts
                return
            for attention, own in zip(attentions, masks[part].split_with_sizes(self.widths), strict=True):
                kept = own * (attention.heads / own.sum().clamp(min=1)) if self.spec.rescaled else own
                attention.gate = FixedMask(kept)

        put(0)
        try:
            yield put
        finally:
            for attention, gate in zip(attentions, former, strict=True):
                attention.gate = gate

    def masks(self, fabric: Fabric, step: int, batches: Sequence[Batch]) -> Tensor:
        """Returns the masks of update `step`, 1 = open: `[1, total]`, or `[batches, total]` with `part`.

        Random masks need no batches.
        """
        if not self.spec.part:
            important = self.spec.method == "important"
            return (self._important(fabric, batches) if important else self._random(step, fabric.device))[None]
        first = fabric.global_rank * len(batches)
        return torch.stack(
            [
                self._important(fabric, [batch], shared=False)
                if self.spec.method == "important"
                else self._random(step, fabric.device, first + number)
                for number, batch in enumerate(batches)
            ]
        )

    def _random(self, step: int, device: torch.device, part: int = 0) -> Tensor:
        """Random-N (algorithm 1). The draw depends on (seed, step, part) alone, so processes and resumed runs agree."""
        rng = np.random.default_rng([self.seed, step, STREAM, part])
        drawn = np.concatenate([rng.choice(heads, number, replace=False) for heads, number in self.groups])
        mask = np.ones(self.total, np.float32)
        mask[drawn] = 0
        if len(self.cross) and not mask[self.cross].any():
            [(scope, _)] = self.groups
            first = drawn[np.isin(drawn, self.cross)][0]
            mask[scope[mask[scope] > 0][0]] = 0  # N heads stay masked: another one in place of the first
            mask[first] = 1
        return to_device(torch.from_numpy(mask), device)

    def _important(self, fabric: Fabric, batches: Sequence[Batch], *, shared: bool = True) -> Tensor:
        """Impt-N (algorithm 2): computes importance by a forward and a backward pass, masks the N heads of highest I_h.

        shared: the processes choose one mask by their batches together. Nothing leaves the device, so a GPU does not
        wait.
        """
        how = self.spec.importance
        with fabric.autocast():
            sums = importance_sums(self.model, batches, how, self.label_smoothing)
        if shared and fabric.world_size > 1:
            reduced: Any = fabric.all_reduce(sums, reduce_op="sum")
            sums = torch.as_tensor(reduced)
        importance = importance_of(sums, how, self.widths)
        if len(self.cross):  # the least important one is masked only where all of them would be
            cross = to_device(torch.from_numpy(self.cross), fabric.device)
            importance = importance.index_fill(0, cross[importance[cross].argmin(0, keepdim=True)], -torch.inf)
        mask = torch.ones(self.total, device=fabric.device)
        for heads, number in self.groups:
            among = to_device(torch.from_numpy(heads), fabric.device)
            mask.index_fill_(0, among[importance[among].topk(number).indices], 0.0)
        return mask

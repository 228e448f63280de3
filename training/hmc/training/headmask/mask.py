"""HeadMask (Sun et al. 2021, section 3): every update masks some heads, so that the model depends on none of them.

The paper's *batch* is one optimiser update here. Accumulated batches and several processes only split that batch to fit
into memory, so one mask holds for all of them, unless the settings say `part`.
How often each head was masked, and how often the same ones, is counted for `headmask.json` of the run folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning_fabric import Fabric
from torch import Tensor

from hmc.artifact.model.heads import HeadLayout
from hmc.artifact.storage.files import write_whole
from hmc.training.data.batches import Batch, to_device
from hmc.training.headmask.spec import HeadMaskSpec
from hmc.training.model.gates import FixedMask
from hmc.training.model.importance import heads_of_attentions, importance_of, importance_sums
from hmc.training.model.regimes import restoring_gates
from hmc.training.model.transformer import Transformer

FILE = "headmask.json"


class MaskLog:
    """Counts the masks of the updates on their device: only `line`, `state` and `note` make a GPU wait.

    With a mask for each part of a batch, an update counts the mean of the masks of the first process.
    """

    def __init__(self, layout: HeadLayout) -> None:
        """layout: the heads that a mask has, in its order."""
        self._heads = list(map(str, layout.heads()))
        self._counts = torch.zeros(len(self._heads))
        self._updates = 0
        self._last: Tensor | None = None
        self._again = torch.zeros(())
        self._pairs = 0
        self.history: list[dict[str, Any]] = []
        """`{"step", "updates", "masked"}` of every `note`: the counts until then."""

    def add(self, masks: Tensor) -> None:
        """Counts the masks of one update, `[parts, total]`, 0 = masked."""
        masked = (masks == 0).float().mean(0)
        # A run makes its masks before its model goes to the GPU.
        self._counts = self._counts.to(masked.device)
        self._again = self._again.to(masked.device)
        self._counts = self._counts + masked
        self._updates = self._updates + 1
        if self._last is not None:
            self._again = self._again + (masked * self._last.to(masked.device)).sum() / masked.sum()
            self._pairs += 1
        self._last = masked

    def line(self) -> dict[str, float]:
        """Starts anew; returns the mean share of masked heads that the update before had masked too (`masked again`).

        Without two updates in a row there is nothing to return.
        """
        shares = {"masked again": float(self._again) / self._pairs} if self._pairs else {}
        self._again = torch.zeros_like(self._again)
        self._pairs = 0
        return shares

    def note(self, step: int, folder: Path) -> None:
        """Adds the counts to the history, and writes it to `headmask.json` in `folder`."""
        self.history.append({"step": step, "updates": self._updates, "masked": self._rounded()})
        content = {"heads": self._heads, "history": self.history}
        write_whole(folder / FILE, json.dumps(content) + "\n")

    def state(self) -> dict[str, Any]:
        """The state that a resumed run needs for the same next line and counts."""
        last = None if self._last is None else self._last.tolist()
        pairs = {"last": last, "again": float(self._again), "pairs": self._pairs}
        return {"updates": self._updates, "masked": self._counts.tolist(), "history": self.history} | pairs

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a `state`; an empty state is the start."""
        if state:
            self._updates = state["updates"]
            self.history = state["history"]
            self._counts = torch.tensor(state["masked"], device=self._counts.device)
        if state.get("last"):  # a state of an earlier version has none
            self._last = torch.tensor(state["last"], device=self._counts.device)
            self._again = torch.tensor(state["again"], device=self._counts.device)
            self._pairs = state["pairs"]

    def _rounded(self) -> list[float]:
        return [round(value, 3) for value in self._counts.tolist()]


STREAM = 0x4D61736B
"""Part of the seed of masks, so that other draws from the same seed are independent of them."""


class HeadMask:
    """Masks N heads in each update. Outside `applied()` every head is open, so evaluation uses the whole model."""

    def __init__(
        self, model: Transformer, layout: HeadLayout, spec: HeadMaskSpec, seed: int, label_smoothing: float
    ) -> None:
        """layout: the model's head layout. label_smoothing: that of the cross entropy, whose gradient importance is,
        also where a teacher's distributions are part of the training loss.

        Raises InvalidRequestError when the model has too few heads for `spec`.
        """
        self.model = model
        self.spec = spec
        self.seed = seed
        self.label_smoothing = label_smoothing
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
            kinds = [kind for kind, *_ in model.open_attentions()]
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
        """Masks N heads during update `step`. batches: the part of the update that this process computes.

        Yields a function that puts the mask of the n-th of `batches` on the model. Call it before the forward pass of
        that batch. The former gates return at the end.
        """
        attentions = [attention for *_, attention in self.model.open_attentions()]
        masks = self.masks(fabric, step, batches) if step > self.spec.after else None
        if masks is not None:
            self.log.add(masks)

        def put(part: int) -> None:
            if masks is None or part >= len(masks):  # the only mask, put on before, holds for all parts
                return
            for attention, own in zip(attentions, masks[part].split_with_sizes(self.widths), strict=True):
                kept = own * (attention.heads / own.sum().clamp(min=1)) if self.spec.rescaled else own
                attention.gate = FixedMask(kept)

        with restoring_gates(attentions):
            put(0)
            yield put

    def masks(self, fabric: Fabric, step: int, batches: Sequence[Batch]) -> Tensor:
        """Returns the masks of update `step`, 1 = open: `[1, total]`, or `[batches, total]` with `part`.

        Random masks need no batches.
        """
        important = self.spec.method == "important"
        if not self.spec.part:
            return (self._important(fabric, batches) if important else self._random(step, fabric.device))[None]
        if important:
            return torch.stack([self._important(fabric, [batch], shared=False) for batch in batches])
        first = fabric.global_rank * len(batches)
        return torch.stack([self._random(step, fabric.device, first + number) for number in range(len(batches))])

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

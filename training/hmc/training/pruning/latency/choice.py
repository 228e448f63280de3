"""Which gates stay open at a latency: those of highest log α, as many as the latency table allows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from hmc.artifact.model.ffn import STACKS, FfnWidths
from hmc.artifact.model.heads import KINDS
from hmc.artifact.model.latency import LatencyTable, Sizes, rounded_up
from hmc.artifact.model.layers import RemovedLayers
from hmc.training.pruning.latency.expected import ModelGates, cost_of

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.floating]
FULL = 0.98
"""Share of the latency from which on a choice counts as full: no gate is looked for that still fits."""
PASSED_OVER = 64
"""Gates that are passed over at most because they cost more than is left."""


@dataclass(frozen=True)
class Choice:
    """The gates that stay open, as booleans over all gates of a set, and what the model then costs."""

    heads: Mask
    neurons: Mask
    sub_layers: Mask
    layers: Mask
    sizes: Sizes
    ms: float
    """By the table."""

    @property
    def parts(self) -> tuple[Mask, Mask, Mask, Mask]:
        """The four masks, in the order of `ModelGates.sets`."""
        return self.heads, self.neurons, self.sub_layers, self.layers


class Chooser:
    """Chooses gates by log α. All sets are compared with each other: log α is how worthwhile a gate is at its cost."""

    def __init__(self, gates: ModelGates, table: LatencyTable) -> None:
        self._table = table
        self._sub_layers, self._layers = gates.sub_layers, gates.layers.layers
        self._layer_of = np.array(gates.layer_of, np.int64)
        self._owner = gates.owner.cpu().numpy()
        self._heads = gates.heads.total
        self._units = len(self._owner)
        self._end = self._units + gates.shared.total
        """Gates are those of units (heads, then neurons), then of sub-layers, then of layers."""
        self._best_path = gates.best_path
        self._gate_of = np.array(gates.gate_of, np.int64)[self._owner]
        self._rows = {kind: len(gates.heads.layout[kind]) for kind in KINDS}
        self._removed = [
            (stack, layer) for stack, layer, _ in gates.neurons.widths.layers() if (stack, layer) not in self._layers
        ]

    def choose(self, log_alpha: Numbers, closed: Mask, ms: float) -> Choice:
        """log_alpha `[total]`, closed `[total]` (gates that cannot open) → the gates that keep the latency `ms`.

        Gates are opened from the highest log α down; a head or neuron counts once its sub-layer and layer are open too.
        One that costs more than is left is passed over, until the latency is nearly reached. Every stack keeps a layer,
        and the decoder the cross-attention head of `ModelGates.best_path`. A layer whose heads and neurons are all
        closed is closed too. Numbers of neurons are then rounded up to whole blocks, which costs nothing.
        """
        shut = closed.copy()
        for _ in range(PASSED_OVER):
            order = np.argsort(-np.where(shut, -np.inf, log_alpha), kind="stable")[: int((~shut).sum())]
            number = self._affordable(order, log_alpha, shut, ms)
            kept = self._kept(order[:number], log_alpha, shut)
            if number == len(order) or self._table.ms(self._sizes(kept)) >= FULL * ms:
                break
            shut[self._too_dear(int(order[number]), kept)] = True
        return self.restored(self._filled(kept, log_alpha, shut))

    def _affordable(self, order: npt.NDArray[np.int64], log_alpha: Numbers, closed: Mask, ms: float) -> int:
        """How many gates of an order keep the latency: it only grows with their number."""
        low, high = 0, len(order)
        while low < high:
            middle = (low + high + 1) // 2
            if self._table.ms(self._sizes(self._kept(order[:middle], log_alpha, closed))) <= ms:
                low = middle
            else:
                high = middle - 1
        return low

    def _too_dear(self, gate: int, kept: Mask) -> int:
        """The gate to pass over: that of the sub-layer, where it is the first head or neuron that needs it."""
        if gate >= self._units or kept[: self._units][self._owner == self._owner[gate]].any():
            return gate
        return self._units + int(self._gate_of[gate])

    def restored(self, kept: Mask) -> Choice:
        """Booleans over all gates `[total]` → the choice that they are."""
        sizes = self._sizes(kept)
        parts = np.split(kept, [self._heads, self._units, self._end])
        return Choice(parts[0], parts[1], parts[2], parts[3], sizes, self._table.ms(sizes))

    def _kept(self, chosen: npt.NDArray[np.int64], log_alpha: Numbers, closed: Mask) -> Mask:
        """Gates of the highest log α → gates that are open, with what layers imply."""
        kept = np.zeros(len(log_alpha), bool)
        kept[chosen] = True
        open_ = torch.from_numpy(np.where(closed, -np.inf, log_alpha))
        kept[self._best_path(open_).numpy()] = True
        shared, layers = kept[self._units : self._end], kept[self._end :]
        worth = log_alpha[self._end :]
        for stack in STACKS:
            mine = [n for n, (s, _) in enumerate(self._layers) if s == stack and not closed[self._end + n]]
            if not layers[mine].any():
                layers[max(mine, key=lambda n: float(worth[n]))] = True
        units = kept[: self._units]
        units &= self._in_open_layer(layers) & shared[self._gate_of]
        used = np.zeros(len(shared), bool)
        used[self._gate_of[units]] = True
        shared &= used
        left = np.zeros(len(self._layers), bool)
        left[self._layer_of[self._owner[units]]] = True
        for stack in STACKS:
            mine = [n for n, (s, _) in enumerate(self._layers) if s == stack and layers[n]]
            if not left[mine].any():
                left[max(mine, key=lambda n: float(worth[n]))] = True
        layers &= left
        return kept

    def _in_open_layer(self, layers: Mask) -> Mask:
        """`[units]` whether the layer of each head and neuron is open."""
        of_sub_layer = (self._layer_of >= 0) & layers[np.maximum(self._layer_of, 0)]
        found: Mask = of_sub_layer[self._owner]
        return found

    def _filled(self, kept: Mask, log_alpha: Numbers, closed: Mask) -> Mask:
        """Opens neurons until every layer has a multiple of the table's step, as far as it has so many."""
        filled = kept.copy()
        for number, (name, _) in enumerate(self._sub_layers):
            step = cost_of(self._table, name).step
            mine = np.flatnonzero(self._owner == number)
            there = int(kept[mine].sum())
            more = rounded_up(there, step) - there
            free = mine[~kept[mine] & ~closed[mine]]
            filled[free[np.argsort(-log_alpha[free], kind="stable")[:more]]] = True
        return filled

    def _sizes(self, kept: Mask) -> Sizes:
        counts = np.bincount(self._owner[kept[: self._units]], minlength=len(self._sub_layers)).tolist()
        found = dict(zip(self._sub_layers, counts, strict=True))
        layers = kept[self._end :]
        removed = [*self._removed, *(layer for layer, open_ in zip(self._layers, layers, strict=True) if not open_)]
        widths = {s: tuple(n for (name, _), n in found.items() if name == s) for s in STACKS}
        heads = {kind: tuple(found[kind, layer] for layer in range(rows)) for kind, rows in self._rows.items()}
        return Sizes(heads=heads, neurons=FfnWidths(**widths), removed=RemovedLayers.of(removed))

"""Which gates stay open at a latency: those of highest log α, as many as the latency table allows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt

from hmc.artifact.model.ffn import STACKS, FfnWidths, Stack
from hmc.artifact.model.heads import KINDS, AttentionKind
from hmc.artifact.model.latency import LatencyTable, Sizes
from hmc.artifact.model.layers import RemovedLayers
from hmc.artifact.rounding import round_up
from hmc.training.pruning.latency.expected import ModelGates, cost_of

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.floating]
Indices = npt.NDArray[np.int64]
FULL = 0.98
"""Share of the latency from which on a choice counts as full: nothing is looked for that still fits."""

SPARED = 0.005
"""Share of the latency that the rest of a sub-layer costs at most to stay where the sub-layer stays anyway."""


@dataclass(frozen=True)
class Choice:
    """The gates that stay open, as booleans over all gates of a set, and the latency of the model with them."""

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
    """Chooses gates by log α, which says how worthwhile a gate is at its cost. A head or neuron is worth as much as the
    lowest of three gates: its own gate, its sub-layer's, and its layer's."""

    def __init__(self, gates: ModelGates, table: LatencyTable) -> None:
        self._table = table
        self._sub_layers = gates.sub_layers
        self._layers = gates.layers.layers
        self._owner = gates.owner.cpu().numpy()
        self._layer_of = np.array(gates.layer_of, np.int64)[self._owner]
        self._gate_of = np.array(gates.gate_of, np.int64)[self._owner]
        self._heads = gates.heads.total
        self._units = len(self._owner)
        self._end = self._units + gates.shared.total
        """Gates are those of units (heads, then neurons), then of sub-layers, then of layers."""
        self._cross = gates.paths[:, 0].cpu().numpy()
        self._removed = [
            (stack, layer) for stack, layer, _ in gates.neurons.widths.layers() if (stack, layer) not in self._layers
        ]

    def choose(self, log_alpha: Numbers, closed: Mask, ms: float) -> Choice:
        """log_alpha `[total]`, closed `[total]` (gates that cannot open) → the gates that keep the latency `ms`.

        Heads and neurons are opened from the most worthwhile down. Where the next one of a sub-layer costs more than is
        left, the rest of that sub-layer is passed over, until the latency is nearly reached. Every stack keeps a layer,
        and the decoder its best head of cross-attention, if it has one. Sub-layers and layers are open if anything in
        them is. Numbers of neurons are then rounded up to whole blocks, which costs nothing, and all of a sub-layer
        stays where its rest costs so little that the latency is kept: on a GPU a head or a neuron costs next to nothing
        beside the operations of its sub-layer.
        """
        worth = self._worth(log_alpha, closed)
        could = np.flatnonzero(worth > -np.inf)
        order = could[np.lexsort((-log_alpha[could], -worth[could]))]
        path = order[np.isin(order, self._cross)][:1]
        while True:
            number = self._affordable(order, path, log_alpha, closed, ms)
            kept = self._kept(np.concatenate([order[:number], path]), log_alpha, closed)
            if number == len(order) or self._table.ms(self._sizes(kept)) >= FULL * ms:
                return self.restored(self._spared(self._filled(kept, log_alpha, closed), closed, ms))
            rest = order[number:]
            order = np.concatenate([order[:number], rest[self._owner[rest] != self._owner[rest[0]]]])

    def _worth(self, log_alpha: Numbers, closed: Mask) -> Numbers:
        """`[units]` the lowest log α of what a head or neuron needs; -inf if any of it is closed."""
        open_ = np.where(closed, -np.inf, log_alpha)
        of_layers = open_[self._end + np.maximum(self._layer_of, 0)]
        worth: Numbers = np.minimum(open_[: self._units], open_[self._units + self._gate_of])
        return np.where(self._layer_of < 0, -np.inf, np.minimum(worth, of_layers))

    def _affordable(self, order: Indices, path: Indices, log_alpha: Numbers, closed: Mask, ms: float) -> int:
        """How many units of an order keep the latency, beside `path`: it only grows with their number."""
        low = 0
        high = len(order)
        while low < high:
            middle = (low + high + 1) // 2
            kept = self._kept(np.concatenate([order[:middle], path]), log_alpha, closed)
            if self._table.ms(self._sizes(kept)) <= ms:
                low = middle
            else:
                high = middle - 1
        return low

    def restored(self, kept: Mask) -> Choice:
        """Booleans over all gates `[total]` → the choice that they are."""
        sizes = self._sizes(kept)
        parts = np.split(kept, [self._heads, self._units, self._end])
        return Choice(parts[0], parts[1], parts[2], parts[3], sizes, self._table.ms(sizes))

    def _kept(self, units: Indices, log_alpha: Numbers, closed: Mask) -> Mask:
        """Heads and neurons → all gates `[total]` that are open with them."""
        kept = np.zeros(len(log_alpha), bool)
        kept[units] = True
        kept[self._units + self._gate_of[units]] = True
        kept[self._end + self._layer_of[units]] = True
        for stack in STACKS:
            mine = [self._end + n for n, (s, _) in enumerate(self._layers) if s == stack]
            if not kept[mine].any():
                kept[max((n for n in mine if not closed[n]), key=lambda n: float(log_alpha[n]))] = True
        return kept

    def _filled(self, kept: Mask, log_alpha: Numbers, closed: Mask) -> Mask:
        """Opens neurons until every layer has a multiple of the table's step, as far as it has so many."""
        filled = kept.copy()
        for number, (name, _) in enumerate(self._sub_layers):
            step = cost_of(self._table, name).step
            mine = np.flatnonzero(self._owner == number)
            number_open = int(kept[mine].sum())
            more = round_up(number_open, step) - number_open
            free = mine[~kept[mine] & ~closed[mine]] if more else mine[:0]
            filled[free[np.argsort(-log_alpha[free], kind="stable")[:more]]] = True
        return filled

    def _spared(self, kept: Mask, closed: Mask, ms: float) -> Mask:
        """Opens the rest of open sub-layers, the cheapest first, where it costs next to nothing and `ms` is kept."""
        spared = kept.copy()
        now = self._table.ms(self._sizes(spared))
        costs = [cost_of(self._table, name).each_ms for name, _ in self._sub_layers]
        for number in np.argsort(costs, kind="stable").tolist():
            mine = np.flatnonzero(self._owner == number)
            if not kept[mine].any():
                continue
            trial = spared.copy()
            trial[mine[~closed[mine]]] = True
            then = self._table.ms(self._sizes(trial))
            if then <= min(ms, now + SPARED * ms):
                spared = trial
                now = then
        return spared

    def _sizes(self, kept: Mask) -> Sizes:
        counts = np.bincount(self._owner[kept[: self._units]], minlength=len(self._sub_layers)).tolist()
        sizes: dict[AttentionKind | Stack, list[int]] = {name: [] for name in (*KINDS, *STACKS)}
        for (name, _), count in zip(self._sub_layers, counts, strict=True):
            sizes[name].append(count)
        removed = RemovedLayers.from_pairs([*self._removed, *compress(self._layers, ~kept[self._end :])])
        neurons = FfnWidths.model_validate({stack: sizes[stack] for stack in STACKS})
        return Sizes(heads={kind: tuple(sizes[kind]) for kind in KINDS}, neurons=neurons, removed=removed)

"""The expected latency of a model whose gates are random, by a latency table; differentiable in the gates."""

from __future__ import annotations

import torch
from torch import Tensor

from hmc.artifact.model.ffn import Stack
from hmc.artifact.model.heads import KINDS, AttentionKind
from hmc.artifact.model.latency import Cost, LatencyTable
from hmc.artifact.model.layers import stack_of
from hmc.training.pruning.gate_sets import HeadGates, LayerGates, NeuronGates, SubLayerGates

SURELY = 1e-6
"""Smallest P(g = 0) that is told from zero, so that logarithms stay finite."""
SPARED_BELOW = 0.5
"""Probability below which the decoder's best way to the source is not closed further for the latency's sake."""


class ModelGates:
    """Gates on all heads, neurons, sub-layers and layers of a model, and the part to which each gate belongs."""

    def __init__(self, heads: HeadGates, neurons: NeuronGates, sub_layers: SubLayerGates, layers: LayerGates) -> None:
        self.heads = heads
        self.neurons = neurons
        self.layers = layers
        self.sets = (heads, neurons, sub_layers, layers)
        self.shared = sub_layers
        self.sub_layers: list[tuple[AttentionKind | Stack, int]] = []
        """(kind or stack, layer) of every sub-layer."""
        owners: list[int] = []
        for kind in KINDS:
            for layer, indices in enumerate(heads.layout[kind]):
                owners += [len(self.sub_layers)] * len(indices)
                self.sub_layers.append((kind, layer))
        for stack, layer, width in neurons.widths.layers():
            owners += [len(self.sub_layers)] * width
            self.sub_layers.append((stack, layer))
        places = {layer: place for place, layer in enumerate(layers.layers)}
        self.layer_of = [places.get((_stack(name), layer), -1) for name, layer in self.sub_layers]
        """Position of the layer of every sub-layer among `layers.layers`; -1: it was removed before the run."""
        present = {number: place for place, number in enumerate(sorted(set(owners)))}
        self.gate_of = [present.get(number, -1) for number in range(len(self.sub_layers))]
        """Position of the gate of every sub-layer among those of `shared`; -1: it has neither heads nor neurons."""
        self.owner = torch.tensor(owners, dtype=torch.long, device=heads.log_alpha().device)
        """`[heads + neurons]` the sub-layer of every head and neuron."""

        self.paths = self._paths(owners)
        """`[cross heads, 3]` positions among all gates: a cross-attention head, its sub-layer and its layer."""

    def _paths(self, owners: list[int]) -> Tensor:
        units = len(owners)
        shared = self.shared.total
        paths = [
            (head, units + self.gate_of[owner], units + shared + self.layer_of[owner])
            for head, owner in enumerate(owners)
            if self.sub_layers[owner][0] == "cross" and self.layer_of[owner] >= 0
        ]
        return torch.tensor(paths, dtype=torch.long, device=self.owner.device).reshape(-1, 3)

    def split(self, values: Tensor) -> tuple[Tensor, ...]:
        """`[total]` values of all gates → values of heads, of neurons, of sub-layers and of layers."""
        return tuple(values.split_with_sizes([gates.total for gates in self.sets]))

    def log_alpha(self) -> Tensor:
        """`[total]` log α of heads, neurons, sub-layers and layers, differentiable."""
        return torch.cat([gates.log_alpha() for gates in self.sets])


class ExpectedLatency:
    """E[latency] in milliseconds, with every gate open or closed independently of the others.

    When a sub-layer is open, it costs `open_ms` with the probability that anything in it is, and `each_ms` for each
    expected head or neuron. All of a layer counts with the probability that the layer is open. Rounding to blocks is
    left out. Almost the whole `open_ms` is thus pressed on the sub-layer's own gate: a single head hardly changes it.
    The cross-attention head that is most open counts, but is no longer pressed once it is more closed than open: with
    all of them closed, the decoder would not see the source.
    """

    def __init__(self, gates: ModelGates, table: LatencyTable) -> None:
        self._gates = gates
        self._fixed = table.fixed_ms
        costs = [cost_of(table, name) for name, _ in gates.sub_layers]
        device = gates.owner.device
        self._open = torch.tensor([cost.open_ms for cost in costs], device=device)
        self._each = torch.tensor([cost.each_ms for cost in costs], device=device)
        self._layers = torch.tensor([table.layers[stack] for stack, _ in gates.layers.layers], device=device)
        present = [n for n, layer in enumerate(gates.layer_of) if layer >= 0 and gates.gate_of[n] >= 0]
        self._gate_of = torch.tensor([gates.gate_of[n] for n in present], dtype=torch.long, device=gates.owner.device)
        self._present = torch.tensor(present, dtype=torch.long, device=gates.owner.device)
        self._layer_of = torch.tensor([gates.layer_of[n] for n in present], device=gates.owner.device)

    def __call__(self) -> Tensor:
        """Returns the expected latency now (scalar)."""
        gates = self._gates
        every = torch.cat([own.open_probabilities() for own in gates.sets])
        heads, neurons, shared, layers = gates.split(torch.where(self._spared(every.detach()), every.detach(), every))
        units = torch.cat([heads, neurons])
        count = units.new_zeros(len(gates.sub_layers)).index_add(0, gates.owner, units)
        closed = torch.log1p(-units.clamp(max=1 - SURELY))
        any_open = -torch.expm1(torch.zeros_like(count).index_add(0, gates.owner, closed))
        costs = (self._open * any_open + self._each * count)[self._present]
        costs = costs * shared[self._gate_of]
        whole = self._layers.index_add(0, self._layer_of, costs)
        return self._fixed + (layers * whole).sum()

    def _spared(self, every: Tensor) -> Tensor:
        """`[total]` open probabilities → `[total]` which gates are not pressed. Makes no GPU wait."""
        spared = torch.zeros_like(every, dtype=torch.bool)
        paths = self._gates.paths
        if not len(paths):
            return spared
        open_ = every[paths].prod(dim=1)
        best = paths.index_select(0, open_.argmax().reshape(1)).reshape(-1)
        return spared.index_fill(0, best, True) & (open_.max() < SPARED_BELOW)


def cost_of(table: LatencyTable, name: AttentionKind | Stack) -> Cost:
    """Returns the costs of a sub-layer: of heads of a kind, or of the neurons of a stack."""
    return table.neurons[name] if name == "encoder" or name == "decoder" else table.heads[name]  # noqa: PLR1714


def _stack(name: AttentionKind | Stack) -> Stack:
    return name if name == "encoder" or name == "decoder" else stack_of(name)  # noqa: PLR1714

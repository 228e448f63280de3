"""Gates on feed-forward neurons: the same hard-concrete gates as on heads, one for a row of fc1 and a column of fc2."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.ffn import STACKS, FfnWidths, Neurons, Stack
from hmc.training.gates import FixedMask, HardConcrete
from hmc.training.gating import GateSet
from hmc.training.transformer import Transformer


def mask_neurons(model: Transformer, kept: Neurons) -> None:
    """Fixed masks that leave exactly the neurons of `kept` open."""
    for stack, layer, ffn in model.feed_forwards():
        if ffn.neurons:
            ffn.gate = FixedMask(_mask(kept[stack][layer], ffn.neurons).to(ffn.fc2.bias.device))


class NeuronGates(GateSet):
    """Hard-concrete gates on every feed-forward neuron of a model, the encoder's layers first."""

    def __init__(self, model: Transformer, initial: float) -> None:
        """initial: starting log α of every gate. Raises InvalidRequestError when the model has no neurons left."""
        modules = list(model.feed_forwards())
        self.widths = FfnWidths(
            **{stack: tuple(ffn.neurons for name, _, ffn in modules if name == stack) for stack in STACKS}
        )
        found = [(stack, ffn) for stack, _, ffn in modules if ffn.neurons]
        if not found:
            raise InvalidRequestError("this model has no feed-forward neurons left to put gates on")
        self._stacks = [stack for stack, _ in found]
        super().__init__([(f, HardConcrete(f.neurons, initial).to(f.fc2.bias.device)) for _, f in found])

    def expected_open(self) -> dict[Stack, float]:
        """Expected number of open neurons of each stack: the sum of P(g ≠ 0)."""
        found: dict[Stack, float] = dict.fromkeys(STACKS, 0.0)
        for stack, value in zip(self._stacks, self.expected_open_per_module(), strict=True):
            found[stack] += value
        return found

    def unsettled(self, margin: float = 0.05) -> Tensor:
        """`[total]` booleans: gates whose P(g ≠ 0) is neither below margin nor above 1 - margin."""
        probability = self.open_probabilities().detach()
        return (margin <= probability) & (probability <= 1 - margin)

    def chosen(self, keep: Tensor) -> dict[Stack, list[list[int]]]:
        """keep `[total]` booleans → positions of the kept neurons in every layer."""
        kept: dict[Stack, list[list[int]]] = {stack: [] for stack in STACKS}
        rows = iter(keep.cpu().split_with_sizes([width for *_, width in self.widths.layers()]))
        for stack, _, _ in self.widths.layers():
            kept[stack].append(next(rows).nonzero()[:, 0].tolist())
        return kept

    def mask(self, kept: Neurons) -> Tensor:
        """The inverse of `chosen`: `[total]` booleans."""
        masks = [_mask(kept[stack][layer], width) for stack, layer, width in self.widths.layers()]
        return torch.cat(masks).to(self.parameters()[0].device)


def _mask(positions: Sequence[int], width: int) -> Tensor:
    """`[width]` booleans, True at `positions`."""
    return torch.zeros(width, dtype=torch.bool).index_fill_(0, torch.tensor(positions, dtype=torch.long), True)

"""Hard-concrete gates on all heads, neurons or layers of a model (Louizos et al. 2018; Voita et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.ffn import STACKS, FfnWidths, Neurons, Stack
from hmc.artifact.model.heads import KINDS, Head, HeadLayout, HeadScores, Kind
from hmc.training.data.batches import to_device
from hmc.training.model.gates import HardConcrete, NestedGate, SampledGate
from hmc.training.model.layers import Attention, FeedForward, Layer
from hmc.training.model.regimes import position_mask
from hmc.training.model.transformer import Transformer

STREAM = 0x47617465
"""Part of the seed of gates, so that other draws from the same seed are independent of them."""
MARGIN = 0.05
"""A gate is settled if its P(g ≠ 0) is less than this far from 0 or 1."""


class GateSet:
    """Hard-concrete gates on some modules. Tensors `[total]` hold all gates, one module after the other."""

    def __init__(
        self, gated: Sequence[tuple[Attention | FeedForward | Layer, int]], initial: float, device: torch.device
    ) -> None:
        """gated: each module with the number of its gates. initial: starting log α of every gate. device: that of the
        model. The gates start in the training regime."""
        self._gated = [(module, HardConcrete(number, initial).to(device)) for module, number in gated]
        self.sampled()

    @property
    def total(self) -> int:
        """Number of gates."""
        return sum(len(gates.log_alpha) for _, gates in self._gated)

    def parameters(self) -> list[Tensor]:
        """Returns the log α of every module."""
        return [gates.log_alpha for _, gates in self._gated]

    def sampled(self) -> None:
        """Sets the training regime: gates are random."""
        for module, gates in self._gated:
            module.gate = SampledGate(gates)

    def draw(self, *seed: int) -> None:
        """Draws the gates that hold until the next draw: for all parts of an accumulated batch, in every process, as
        the mask of HeadMask does. The draw depends on `seed` alone, so a resumed run draws the same."""
        uniform = torch.from_numpy(np.random.default_rng([*seed, STREAM]).random(self.total, np.float32))
        for (_, gates), part in zip(
            self._gated, self._by_module(to_device(uniform, self.parameters()[0].device)), strict=True
        ):
            gates.draw(part)

    def close(self, closed: Tensor) -> None:
        """closed `[total]` booleans: these gates are 0 from now on, in both regimes; P(g ≠ 0) of them is 0."""
        for (_, gates), part in zip(self._gated, self._by_module(closed), strict=True):
            gates.close(part)

    def log_alpha(self) -> Tensor:
        """`[total]` log α of every gate, differentiable."""
        return torch.cat(self.parameters())

    def open_probabilities(self) -> Tensor:
        """`[total]` P(g ≠ 0) of every gate, differentiable."""
        return torch.cat([gates.open_probability() for _, gates in self._gated])

    def decision_penalty(self, keep: Tensor, among: Tensor) -> Tensor:
        """keep `[total]` booleans, among: positions of gates → the mean penalty that makes these decide (scalar)."""
        return HardConcrete.indecision(self.log_alpha()[among], keep[among]).mean()

    @torch.no_grad()
    def set_log_alpha(self, values: Tensor) -> None:
        """Sets log α to values `[total]`."""
        for log_alpha, part in zip(self.parameters(), self._by_module(values), strict=True):
            log_alpha.copy_(part)

    def expected_open_per_module(self) -> list[float]:
        """Returns the expected number of open gates of every module: the sum of P(g ≠ 0)."""
        sums: list[float] = torch.stack([g.open_probability().detach().sum() for _, g in self._gated]).tolist()
        return sums

    def is_unsettled(self) -> Tensor:
        """`[total]` booleans: gates whose P(g ≠ 0) lies between MARGIN and 1 - MARGIN."""
        probability = self.open_probabilities().detach()
        return (probability >= MARGIN) & (probability <= 1 - MARGIN)

    def _by_module(self, values: Tensor) -> Sequence[Tensor]:
        return values.split_with_sizes([len(log_alpha) for log_alpha in self.parameters()])


class HeadGates(GateSet):
    """Gates on every head of some kinds of a model. Heads of other kinds have no gates and stay open."""

    def __init__(self, model: Transformer, layout: HeadLayout, initial: float, kinds: Sequence[Kind] = KINDS) -> None:
        """layout: the model's head layout. initial: starting log α of every gate.

        Raises InvalidRequestError when the model has no head of these kinds.
        """
        self.layout = layout
        self.kinds = tuple(kinds)
        found = [(kind, attention) for kind, _, attention in model.attentions() if attention.heads and kind in kinds]
        if not found:
            raise InvalidRequestError(f"this model has no heads of {', '.join(kinds)} left to put gates on")
        self._kinds = [kind for kind, _ in found]
        self.heads = [head for head in layout.heads() if head.kind in kinds]
        """The head of every gate, in the order of the `[total]` tensors."""
        super().__init__([(a, a.heads) for _, a in found], initial, model.shared.weight.device)

    def positions(self, kinds: Sequence[Kind]) -> Tensor:
        """Returns the positions of the gates of `kinds` in the `[total]` tensors."""
        found = [i for i, head in enumerate(self.heads) if head.kind in kinds]
        return torch.tensor(found, dtype=torch.long, device=self.parameters()[0].device)

    def expected_open(self) -> dict[Kind, float]:
        """Returns the expected number of open heads of each gated kind: the sum of P(g ≠ 0)."""
        found: dict[Kind, float] = dict.fromkeys(self.kinds, 0.0)
        for kind, value in zip(self._kinds, self.expected_open_per_module(), strict=True):
            found[kind] += value
        return found

    def unsettled(self) -> dict[Head, float]:
        """Returns the gates whose P(g ≠ 0) lies between MARGIN and 1 - MARGIN, with that probability."""
        rows = zip(self.heads, self.open_probabilities().tolist(), strict=True)
        return {head: probability for head, probability in rows if MARGIN <= probability <= 1 - MARGIN}

    def scores(self, arch: Architecture) -> HeadScores:
        """Returns log α as `[layers, heads]` per kind, at original head indices.

        It is -inf for heads that the model does not have, and +inf for heads without a gate.
        """
        scores: dict[Kind, np.ndarray] = {
            kind: np.full((len(self.layout[kind]), arch.heads), -np.inf, np.float32) for kind in KINDS
        }
        for head in self.layout.heads():
            scores[head.kind][head.layer, head.index] = np.inf
        for head, value in zip(self.heads, self.log_alpha().tolist(), strict=True):
            scores[head.kind][head.layer, head.index] = value
        return scores


class NeuronGates(GateSet):
    """Gates on every feed-forward neuron of a model, the encoder's layers first.

    One gate stands for a row of `fc1` and a column of `fc2`.
    """

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
        super().__init__([(f, f.neurons) for _, f in found], initial, model.shared.weight.device)

    def expected_open(self) -> dict[Stack, float]:
        """Returns the expected number of open neurons of each stack: the sum of P(g ≠ 0)."""
        found: dict[Stack, float] = dict.fromkeys(STACKS, 0.0)
        for stack, value in zip(self._stacks, self.expected_open_per_module(), strict=True):
            found[stack] += value
        return found

    def chosen(self, keep: Tensor) -> dict[Stack, list[list[int]]]:
        """keep `[total]` booleans → positions of the kept neurons in every layer."""
        kept: dict[Stack, list[list[int]]] = {stack: [] for stack in STACKS}
        rows = iter(keep.cpu().split_with_sizes([width for *_, width in self.widths.layers()]))
        for stack, _, _ in self.widths.layers():
            kept[stack].append(next(rows).nonzero()[:, 0].tolist())
        return kept

    def mask(self, kept: Neurons) -> Tensor:
        """Positions of neurons in every layer → `[total]` booleans; the inverse of `chosen`."""
        masks = [position_mask(kept[stack][layer], width) for stack, layer, width in self.widths.layers()]
        return torch.cat(masks).to(self.parameters()[0].device)


class SubLayerGates(GateSet):
    """A gate on every attention and feed-forward sub-layer, in addition to the gates on its heads or neurons.

    It closes all of them at once; gates of single heads cannot do so (Xia et al. 2022, section 3.1).
    """

    def __init__(self, heads: HeadGates, neurons: NeuronGates, initial: float) -> None:
        """heads, neurons: the gates of the parts. initial: starting log α of every gate."""
        inner = [*heads._gated, *neurons._gated]
        self._inner = [gates for _, gates in inner]
        super().__init__([(module, 1) for module, _ in inner], initial, inner[0][1].log_alpha.device)

    def sampled(self) -> None:
        """Sets the training regime. Call it after the parts have sampled their gates, because it includes these
        gates."""
        for (module, own), parts in zip(self._gated, self._inner, strict=True):
            module.gate = NestedGate(parts, own)


class LayerGates(GateSet):
    """A gate on every layer of a model that has not been removed, the encoder's layers first."""

    def __init__(self, model: Transformer, initial: float) -> None:
        """initial: starting log α of every gate."""
        found = [(stack, number, layer) for stack, number, layer in model.layers() if not layer.removed]
        self.layers = [(stack, number) for stack, number, _ in found]
        """(stack, layer) of every gate."""
        super().__init__([(layer, 1) for *_, layer in found], initial, model.shared.weight.device)

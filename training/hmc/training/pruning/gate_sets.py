"""Hard-concrete gates on all heads, neurons or layers of a model (Louizos et al. 2018; Voita et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.ffn import STACKS, FfnWidths, Neurons, Stack
from hmc.artifact.model.heads import KINDS, AttentionKind, Head, HeadLayout, HeadScores
from hmc.training.data.batches import to_device
from hmc.training.model.gates import Gate, HardConcrete, NestedGate, SampledGate
from hmc.training.model.regimes import Gated, position_mask
from hmc.training.model.transformer import Transformer
from hmc.training.pruning.pressure import sure_log_alpha

STREAM = 0x47617465
"""Part of the seed of gates, so that other draws from the same seed are independent of them."""
MARGIN = 0.05
"""A gate is settled if its P(g ≠ 0) is less than this far from 0 or 1."""


class GateSet:
    """Hard-concrete gates on some modules. Tensors `[total]` hold all gates, one module after the other."""

    group: str
    """Parameter group of the optimiser."""

    def __init__(self, modules: Sequence[Gated], gates: Sequence[HardConcrete], sampled: Sequence[Gate]) -> None:
        """gates: of each module. sampled: what each module's outputs go through in the training regime, in which the
        gates start."""
        self.modules = modules
        self.gates = gates
        self._sampled = sampled
        self.sampled()
        self.closed = torch.zeros_like(self.log_alpha(), dtype=torch.bool)
        self.remaining = torch.arange(len(self.closed), device=self.closed.device)
        """Positions of the gates that are not closed."""
        self._held: Tensor | None = None

    @property
    def total(self) -> int:
        """Number of gates."""
        return sum(map(len, self.parameters()))

    def parameters(self) -> list[Tensor]:
        """Returns the log α of every module."""
        return [gates.log_alpha for gates in self.gates]

    def sampled(self) -> None:
        """Sets the training regime: gates are random."""
        for module, gate in zip(self.modules, self._sampled, strict=True):
            module.gate = gate

    def draw(self, *seed: int) -> None:
        """Draws the gates that hold until the next draw: for all parts of an accumulated batch, in every process, as
        the mask of HeadMask does. The draw depends on `seed` alone, so a resumed run draws the same."""
        uniform = torch.from_numpy(np.random.default_rng([*seed, STREAM]).random(self.total, np.float32))
        for gates, part in self._by_module(to_device(uniform, self.closed.device)):
            gates.draw(part)

    def close(self, closed: Tensor) -> None:
        """closed `[total]` booleans: these gates are 0 from now on, in both regimes; P(g ≠ 0) of them is 0, and they
        count in no budget."""
        for gates, part in self._by_module(closed):
            gates.close(part)
        self.closed = closed
        self.remaining = (~closed).nonzero()[:, 0]
        self._held = self.log_alpha().detach().clone() if bool(closed.any()) else None

    def hold(self) -> None:
        """Sets the log α of closed gates back: Adam's momentum from before they were closed would still move them."""
        if self._held is not None:
            self.set_log_alpha(torch.where(self.closed, self._held, self.log_alpha().detach()))

    def log_alpha(self) -> Tensor:
        """`[total]` log α of every gate, differentiable."""
        return torch.cat(self.parameters())

    def open_probabilities(self) -> Tensor:
        """`[total]` P(g ≠ 0) of every gate, differentiable."""
        return torch.cat([gates.open_probability() for gates in self.gates])

    def decision_penalty(self, keep: Tensor) -> Tensor:
        """keep `[total]` booleans → the mean penalty that makes the gates that are not closed decide (scalar)."""
        return HardConcrete.indecision(self.log_alpha()[self.remaining], keep[self.remaining]).mean()

    def move(self, keep: Tensor, updates: int) -> None:
        """Moves every log α towards its end, which it reaches in this number of updates."""
        log_alpha = self.log_alpha().detach()
        own = log_alpha[self.remaining]
        moved = own + (sure_log_alpha(own, keep[self.remaining]) - own) / updates
        self.set_log_alpha(log_alpha.index_copy(0, self.remaining, moved))

    @torch.no_grad()
    def set_log_alpha(self, values: Tensor) -> None:
        """Sets log α to values `[total]`."""
        for gates, part in self._by_module(values):
            gates.log_alpha.copy_(part)

    def expected_open_per_module(self) -> list[float]:
        """Returns the expected number of open gates of every module: the sum of P(g ≠ 0)."""
        sums: list[float] = torch.stack([gates.open_probability().detach().sum() for gates in self.gates]).tolist()
        return sums

    def is_unsettled(self) -> Tensor:
        """`[total]` booleans: gates whose P(g ≠ 0) lies between MARGIN and 1 - MARGIN."""
        probability = self.open_probabilities().detach()
        return (probability >= MARGIN) & (probability <= 1 - MARGIN)

    def undecided(self, keep: Tensor) -> Tensor:
        """`[total]` booleans: the gates that a decision now would force: unsettled gates, and gates that change
        sides."""
        log_alpha = self.log_alpha().detach()
        return ((keep != (log_alpha > 0)) | self.is_unsettled()) & ~self.closed

    def _by_module(self, values: Tensor) -> Iterator[tuple[HardConcrete, Tensor]]:
        """values `[total]` → the gates of each module, and their values."""
        return zip(self.gates, values.split_with_sizes(list(map(len, self.parameters()))), strict=True)


class HeadGates(GateSet):
    """Gates on every head of some kinds of a model. Heads of other kinds have no gates and stay open."""

    group = "gates"

    def __init__(
        self, model: Transformer, layout: HeadLayout, initial: float, kinds: Sequence[AttentionKind] = KINDS
    ) -> None:
        """layout: the model's head layout. initial: starting log α of every gate.

        Raises InvalidRequestError when the model has no head of these kinds.
        """
        self.layout = layout
        self.kinds = tuple(kinds)
        gated = [(kind, attention) for kind, _, attention in model.open_attentions() if kind in kinds]
        if not gated:
            raise InvalidRequestError(f"this model has no heads of {', '.join(kinds)} left to put gates on")
        self._kinds = [kind for kind, _ in gated]
        self.heads = [head for head in layout.heads() if head.kind in kinds]
        """The head of every gate, in the order of the `[total]` tensors."""
        modules = [attention for _, attention in gated]
        super().__init__(modules, *independent([attention.heads for attention in modules], initial, model))

    def positions(self, kinds: Sequence[AttentionKind]) -> Tensor:
        """Returns the positions of the gates of `kinds` in the `[total]` tensors."""
        chosen = torch.tensor([head.kind in kinds for head in self.heads], device=self.closed.device)
        return chosen.nonzero()[:, 0]

    def expected_open(self) -> dict[AttentionKind, float]:
        """Returns the expected number of open heads of each gated kind: the sum of P(g ≠ 0)."""
        expected: dict[AttentionKind, float] = dict.fromkeys(self.kinds, 0.0)
        for kind, value in zip(self._kinds, self.expected_open_per_module(), strict=True):
            expected[kind] += value
        return expected

    def unsettled(self) -> dict[Head, float]:
        """Returns the gates whose P(g ≠ 0) lies between MARGIN and 1 - MARGIN, with that probability."""
        rows = zip(self.heads, self.open_probabilities().tolist(), strict=True)
        return {head: probability for head, probability in rows if MARGIN <= probability <= 1 - MARGIN}

    def scores(self, arch: Architecture) -> HeadScores:
        """Returns log α as `[layers, heads]` per kind, at original head indices.

        It is -inf for heads that the model does not have, and +inf for heads without a gate.
        """
        scores: dict[AttentionKind, np.ndarray] = {
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

    group = "neurons"

    def __init__(self, model: Transformer, initial: float) -> None:
        """initial: starting log α of every gate. Raises InvalidRequestError when the model has no neurons left."""
        widths: dict[Stack, list[int]] = {stack: [] for stack in STACKS}
        modules = []
        self._stacks: list[Stack] = []
        for stack, _, ffn in model.feed_forwards():
            widths[stack].append(ffn.neurons)
            if ffn.neurons:
                modules.append(ffn)
                self._stacks.append(stack)
        if not modules:
            raise InvalidRequestError("this model has no feed-forward neurons left to put gates on")
        self.widths = FfnWidths.model_validate(widths)
        super().__init__(modules, *independent([ffn.neurons for ffn in modules], initial, model))

    def expected_open(self) -> dict[Stack, float]:
        """Returns the expected number of open neurons of each stack: the sum of P(g ≠ 0)."""
        expected: dict[Stack, float] = dict.fromkeys(STACKS, 0.0)
        for stack, value in zip(self._stacks, self.expected_open_per_module(), strict=True):
            expected[stack] += value
        return expected

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
        return torch.cat(masks).to(self.closed.device)


class SubLayerGates(GateSet):
    """A gate on every attention and feed-forward sub-layer, in addition to the gates on its heads or neurons.

    It closes all of them at once; gates of single heads cannot do so (Xia et al. 2022, section 3.1).
    """

    group = "sub_layers"

    def __init__(self, heads: HeadGates, neurons: NeuronGates, initial: float) -> None:
        """heads, neurons: the gates of the parts, which these gates include when they are sampled. initial: starting
        log α of every gate."""
        parts = [*heads.gates, *neurons.gates]
        own = [HardConcrete(1, initial).to(heads.closed.device) for _ in parts]
        super().__init__([*heads.modules, *neurons.modules], own, list(map(NestedGate, parts, own)))


class LayerGates(GateSet):
    """A gate on every layer of a model that has not been removed, the encoder's layers first."""

    group = "layers"

    def __init__(self, model: Transformer, initial: float) -> None:
        """initial: starting log α of every gate."""
        gated = [(stack, number, layer) for stack, number, layer in model.layers() if not layer.removed]
        self.layers = [(stack, number) for stack, number, _ in gated]
        """(stack, layer) of every gate."""
        super().__init__([layer for *_, layer in gated], *independent([1] * len(gated), initial, model))


def independent(
    numbers: Sequence[int], initial: float, model: Transformer
) -> tuple[list[HardConcrete], list[SampledGate]]:
    """Returns gates that belong to no others, as `GateSet` takes them. numbers: gates of each module."""
    gates = [HardConcrete(number, initial).to(model.shared.weight.device) for number in numbers]
    return gates, list(map(SampledGate, gates))

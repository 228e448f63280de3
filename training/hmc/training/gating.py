"""Gates of a whole model: putting one regime on every module that has gates, and reading them as scores per head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from hmc.artifact.architecture import Architecture
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.heads import KINDS, Head, HeadLayout, HeadScores, Kind
from hmc.training.attention import Attention
from hmc.training.gates import DeterministicGate, FixedMask, HardConcrete, OpenGate, SampledGate
from hmc.training.transformer import FeedForward, Transformer


def gated_modules(model: Transformer) -> Iterator[Attention | FeedForward]:
    """Every module that can have a gate: attentions, then feed-forward sub-layers."""
    yield from (attention for *_, attention in model.attentions())
    yield from (ffn for *_, ffn in model.feed_forwards())


class GateSet:
    """Hard-concrete gates on some modules. Tensors hold all gates, one module after the other."""

    def __init__(self, gated: Sequence[tuple[Attention | FeedForward, HardConcrete]]) -> None:
        """gated: every module with the parameters of its gates. They are put on in the training regime."""
        self._gated = list(gated)
        self.sampled()

    @property
    def total(self) -> int:
        """Number of gates."""
        return sum(len(gates.log_alpha) for _, gates in self._gated)

    def parameters(self) -> list[Tensor]:
        """log α of every module."""
        return [gates.log_alpha for _, gates in self._gated]

    def sampled(self) -> None:
        """Training regime."""
        for module, gates in self._gated:
            module.gate = SampledGate(gates)

    def deterministic(self) -> None:
        """Evaluation regime."""
        for module, gates in self._gated:
            module.gate = DeterministicGate(gates)

    def log_alpha(self) -> Tensor:
        """`[total]` log α of every gate, differentiable."""
        return torch.cat(self.parameters())

    def open_probabilities(self) -> Tensor:
        """`[total]` P(g ≠ 0) of every gate, differentiable."""
        return torch.cat([gates.open_probability() for _, gates in self._gated])

    @torch.no_grad()
    def set_log_alpha(self, values: Tensor) -> None:
        """values `[total]`."""
        own = self.parameters()
        for log_alpha, part in zip(own, values.split_with_sizes([len(x) for x in own]), strict=True):
            log_alpha.copy_(part)

    def expected_open_per_module(self) -> list[float]:
        """The sum of P(g ≠ 0) of every module."""
        sums: list[float] = torch.stack([g.open_probability().detach().sum() for _, g in self._gated]).tolist()
        return sums


def open_gates(model: Transformer) -> None:
    """No gate on any attention or feed-forward sub-layer."""
    for module in gated_modules(model):
        module.gate = OpenGate()


def mask_to_layout(model: Transformer, current: HeadLayout, target: HeadLayout) -> None:
    """Fixed masks that leave exactly the heads of `target` open in a model of layout `current`."""
    kept = current.restrict(target)
    for kind, layer, attention in model.attentions():
        if attention.heads:
            mask = torch.zeros(attention.heads, device=attention.out_bias.device)
            mask[kept[kind][layer]] = 1.0
            attention.gate = FixedMask(mask)


class HeadGates(GateSet):
    """Hard-concrete gates on every head of some kinds of a model; heads of other kinds have none and stay open."""

    def __init__(self, model: Transformer, layout: HeadLayout, initial: float, kinds: Sequence[Kind] = KINDS) -> None:
        """layout: the model's own head layout. initial: starting log α of every gate.

        Raises InvalidRequestError when the model has no head of these kinds.
        """
        self.layout, self.kinds = layout, tuple(kinds)
        found = [(kind, attention) for kind, _, attention in model.attentions() if attention.heads and kind in kinds]
        if not found:
            raise InvalidRequestError(f"this model has no heads of {', '.join(kinds)} left to put gates on")
        self._kinds = [kind for kind, _ in found]
        self.heads = [head for head in layout.heads() if head.kind in kinds]
        """The head of every gate, in the order of all tensors."""
        super().__init__([(a, HardConcrete(a.heads, initial).to(a.out_bias.device)) for _, a in found])

    def positions(self, kinds: Sequence[Kind]) -> Tensor:
        """Positions of the gates of `kinds` in the tensors above."""
        found = [i for i, head in enumerate(self.heads) if head.kind in kinds]
        return torch.tensor(found, dtype=torch.long, device=self.parameters()[0].device)

    def expected_open(self) -> dict[Kind, float]:
        """Expected number of open heads of each gated kind: the sum of P(g ≠ 0)."""
        found: dict[Kind, float] = dict.fromkeys(self.kinds, 0.0)
        for kind, value in zip(self._kinds, self.expected_open_per_module(), strict=True):
            found[kind] += value
        return found

    def unsettled(self, margin: float = 0.05) -> dict[Head, float]:
        """Gates whose P(g ≠ 0) is neither below margin nor above 1 - margin, with that probability."""
        rows = zip(self.heads, self.open_probabilities().tolist(), strict=True)
        return {head: probability for head, probability in rows if margin <= probability <= 1 - margin}

    def scores(self, arch: Architecture) -> HeadScores:
        """log α as `[layers, heads]` per kind, at original head indices.

        -inf where the model has no such head, +inf where it has one without a gate.
        """
        scores: dict[Kind, np.ndarray] = {
            kind: np.full((len(self.layout[kind]), arch.heads), -np.inf, np.float32) for kind in KINDS
        }
        for head in self.layout.heads():
            scores[head.kind][head.layer, head.index] = np.inf
        for head, value in zip(self.heads, self.log_alpha().tolist(), strict=True):
            scores[head.kind][head.layer, head.index] = value
        return scores

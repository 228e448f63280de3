"""Gates of a whole model: putting one regime on every attention, and reading them as scores per head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hmc.artifact.architecture import Architecture
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.heads import KINDS, Head, HeadLayout, HeadScores, Kind
from hmc.training.attention import Attention
from hmc.training.gates import DeterministicGate, FixedMask, HardConcrete, OpenGate, SampledGate
from hmc.training.transformer import Transformer


def open_gates(model: Transformer) -> None:
    """No gate on any attention."""
    for _, _, attention in model.attentions():
        attention.gate = OpenGate()


def mask_to_layout(model: Transformer, current: HeadLayout, target: HeadLayout) -> None:
    """Fixed masks that leave exactly the heads of `target` open in a model of layout `current`."""
    kept = current.restrict(target)
    for kind, layer, attention in model.attentions():
        if attention.heads:
            mask = torch.zeros(attention.heads, device=attention.out_bias.device)
            mask[kept[kind][layer]] = 1.0
            attention.gate = FixedMask(mask)


class HeadGates:
    """Hard-concrete gates on every head of some kinds of a model; heads of other kinds have none and stay open."""

    def __init__(self, model: Transformer, layout: HeadLayout, initial: float, kinds: Sequence[Kind] = KINDS) -> None:
        """layout: the model's own head layout. initial: starting log α of every gate.

        Raises InvalidRequestError when the model has no head of these kinds.
        """
        self.layout, self.kinds = layout, tuple(kinds)
        self._attentions: list[tuple[Kind, int, Attention, HardConcrete]] = [
            (kind, layer, attention, HardConcrete(attention.heads, initial).to(attention.out_bias.device))
            for kind, layer, attention in model.attentions()
            if attention.heads and kind in kinds
        ]
        if not self._attentions:
            raise InvalidRequestError(f"this model has no heads of {', '.join(kinds)} left to put gates on")
        self.heads = [head for head in layout.heads() if head.kind in kinds]
        """The head of every gate, in the order of all tensors below."""
        self.sampled()

    @property
    def total(self) -> int:
        """Number of gates."""
        return len(self.heads)

    def parameters(self) -> list[Tensor]:
        """log α of every attention."""
        return [gates.log_alpha for *_, gates in self._attentions]

    def sampled(self) -> None:
        """Training regime."""
        for _, _, attention, gates in self._attentions:
            attention.gate = SampledGate(gates)

    def deterministic(self) -> None:
        """Evaluation regime."""
        for _, _, attention, gates in self._attentions:
            attention.gate = DeterministicGate(gates)

    def log_alpha(self) -> Tensor:
        """`[total]` log α of every gate, differentiable."""
        return torch.cat([gates.log_alpha for *_, gates in self._attentions])

    def open_probabilities(self) -> Tensor:
        """`[total]` P(g ≠ 0) of every gate, differentiable."""
        return torch.cat([gates.open_probability() for *_, gates in self._attentions])

    @torch.no_grad()
    def set_log_alpha(self, values: Tensor) -> None:
        """values `[total]`."""
        for (*_, gates), part in zip(
            self._attentions, values.split_with_sizes([a.heads for _, _, a, _ in self._attentions]), strict=True
        ):
            gates.log_alpha.copy_(part)

    def positions(self, kinds: Sequence[Kind]) -> Tensor:
        """Positions of the gates of `kinds` in the tensors above."""
        device = self._attentions[0][2].out_bias.device
        return torch.tensor([i for i, head in enumerate(self.heads) if head.kind in kinds], device=device)

    def expected_open(self) -> dict[Kind, float]:
        """Expected number of open heads of each gated kind: the sum of P(g ≠ 0)."""
        sums = [gates.open_probability().detach().sum() for *_, gates in self._attentions]
        found: dict[Kind, float] = dict.fromkeys(self.kinds, 0.0)
        for (kind, *_), value in zip(self._attentions, torch.stack(sums).tolist(), strict=True):
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

"""Gates of a whole model: putting one regime on every attention, and reading them as scores per head."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hmc.artifact.architecture import Architecture
from hmc.artifact.heads import KINDS, HeadLayout, HeadScores, Kind
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
    """Hard-concrete gates on every head of a model (all three kinds)."""

    def __init__(self, model: Transformer, layout: HeadLayout, initial: float) -> None:
        """layout: the model's own head layout. initial: starting log α of every gate."""
        self.layout = layout
        self._attentions: list[tuple[Kind, int, Attention, HardConcrete]] = [
            (kind, layer, attention, HardConcrete(attention.heads, initial).to(attention.out_bias.device))
            for kind, layer, attention in model.attentions()
            if attention.heads
        ]
        self.sampled()

    @property
    def total(self) -> int:
        """Number of gates."""
        return sum(attention.heads for _, _, attention, _ in self._attentions)

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

    def open_probabilities(self) -> Tensor:
        """`[total]` P(g ≠ 0) of every gate, differentiable."""
        return torch.cat([gates.open_probability() for *_, gates in self._attentions])

    def expected_open(self) -> float:
        """Expected number of open heads: the sum of P(g ≠ 0)."""
        return float(self.open_probabilities().detach().sum())

    def unsettled(self, margin: float = 0.05) -> int:
        """Gates whose P(g ≠ 0) is neither below margin nor above 1 - margin."""
        p = self.open_probabilities().detach()
        return int(((p > margin) & (p < 1 - margin)).sum())

    def scores(self, arch: Architecture) -> HeadScores:
        """log α as `[layers, heads]` per kind, at original head indices; -inf where the model has no such head."""
        scores: dict[Kind, np.ndarray] = {}
        for kind in KINDS:
            layers = arch.encoder_layers if kind == "encoder_self" else arch.decoder_layers
            scores[kind] = np.full((layers, arch.heads), -np.inf, np.float32)
        for kind, layer, _, gates in self._attentions:
            scores[kind][layer, list(self.layout[kind][layer])] = gates.log_alpha.detach().cpu().numpy()
        return scores

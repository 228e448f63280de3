"""Multi-head attention with a gate on every head, written once for all three kinds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hmc.training.model.cpu.linear import Linear, linear
from hmc.training.model.cpu.scaled_dot_product import KeyValues, attend
from hmc.training.model.gates import Gate, OpenGate


class Attention(nn.Module):
    """MultiHead(Q, K, V) = Concat_h(g_h · head_h) W_O (Voita et al. 2019, section 6.1).

    With 0 heads only W_O's bias remains. Key and value projections are one matrix, `key_value` `[2·H·D, d_model]`.
    """

    gate: Gate

    def __init__(self, *, d_model: int, heads: int, head_dim: int, gate: Gate | None = None) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        inner = heads * head_dim
        if heads:
            self.query = Linear(d_model, inner)
            self.key_value = Linear(d_model, 2 * inner)
            self.out_weight = nn.Parameter(torch.empty(d_model, inner))
            for weight in (self.query.weight, *self.key_value.weight.chunk(2), self.out_weight):
                nn.init.xavier_uniform_(weight)
            nn.init.zeros_(self.query.bias)
            nn.init.zeros_(self.key_value.bias)
        self.out_bias = nn.Parameter(torch.zeros(d_model))
        self.gate = gate or OpenGate()

    def project(self, states: Tensor) -> KeyValues:
        """states `[B, S, d_model]` → keys and values `[B, H, S, D]`."""
        batch, length, _ = states.shape
        fused = self.key_value(states).view(batch, length, 2, self.heads, self.head_dim)
        return KeyValues(fused.permute(2, 0, 3, 1, 4))

    def forward(self, states: Tensor, source: KeyValues | None, mask: Tensor | None, *, causal: bool = False) -> Tensor:
        """states `[B, T, d_model]`, keys and values of `source`, mask broadcastable to `[B, H, T, S]` (True = attend)
        → `[B, T, d_model]`. causal: position t attends to positions up to t."""
        if not self.heads or source is None:
            return self.out_bias.expand_as(states)
        batch, length, _ = states.shape
        query = self.query(states).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        context = attend(query, source, mask, causal=causal)
        context = self.gate(context)  # [B, H, T, D]
        joined = context.transpose(1, 2).reshape(batch, length, self.heads * self.head_dim)
        return linear(joined, self.out_weight, self.out_bias)

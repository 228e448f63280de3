"""Dropout whose random bits are drawn four to a 64-bit word: several times faster than the stock one on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Dropout(nn.Module):
    """Zeroes elements with probability p (to a resolution of 1/65536) and scales the rest by 1/(1 - p)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape → the same shape."""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            return functional.dropout(x, self.p)
        threshold = round(self.p * 65536) - 32768
        words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        keep = words.view(torch.int16)[: x.numel()].view(x.shape) >= threshold
        return x * keep * (1 / (1 - self.p))

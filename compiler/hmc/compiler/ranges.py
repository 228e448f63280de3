"""Ranges of quantised values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ActivationRange:
    """Static quantisation of an activation to uint8: real = scale · (q - zero_point)."""

    scale: float
    zero_point: int

    @property
    def symmetric_scale(self) -> float:
        """The scale with which int8, real = scale · q, covers the same values."""
        return self.scale * max(self.zero_point, 255 - self.zero_point) / 127

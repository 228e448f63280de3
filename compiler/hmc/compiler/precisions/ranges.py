"""Ranges to which activations are quantised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class ActivationRange:
    """Static quantisation of an activation to uint8: real = scale · (q - zero_point)."""

    scale: float
    zero_point: int

    @property
    def symmetric_scale(self) -> float:
        """The scale with which int8 without a zero point, real = scale · q, covers the same values."""
        return self.scale * max(self.zero_point, 255 - self.zero_point) / 127

    def rounded(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Values of any shape, quantised and converted back."""
        steps = np.clip(np.round(values / np.float32(self.scale)) + self.zero_point, 0, 255) - self.zero_point
        rounded: npt.NDArray[np.float32] = (steps * np.float32(self.scale)).astype(np.float32)
        return rounded

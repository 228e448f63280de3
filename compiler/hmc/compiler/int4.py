"""4-bit weights for the decoder: half the bytes of int8, for few rows, where a step costs what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from hmc.compiler.graph import MICROSOFT, GraphBuilder
from hmc.compiler.linears import Array, Int8Linears, Parts, cut_apart

BLOCK = 32
"""Weights that share a scale. ONNX Runtime's kernel gives a row the same result in any batch with 32, not with 64 and
more (decision 20: on AVX2 in any batch of two rows or more)."""
ACCURACY_LEVEL = 4
"""The operator quantises each block of a row of activations to int8 by itself."""
CLIPS = np.linspace(0.6, 1.0, 9)


def quantize_blocks(weight: Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """weight `[out, in]` → packed 4-bit values `[out, blocks, 16]` and scales `[out, blocks]`: real = (q - 8) · scale.

    The scale of a block, its sign included, is the one of a few clipped ranges with the least squared error. A last
    block that is not full is filled with zeros.
    """
    outputs, width = weight.shape
    padded = np.pad(weight.astype(np.float32), ((0, 0), (0, -width % BLOCK)))
    blocks = padded.reshape(outputs, -1, BLOCK)
    largest = np.maximum(np.abs(blocks).max(axis=-1, keepdims=True), 1e-8)
    best, scales = np.full_like(largest, np.inf), np.ones_like(largest)
    for clip in CLIPS:
        for sign in (1, -1):
            scale = largest * np.float32(sign * clip / 7.5)
            error = np.square(np.clip(np.round(blocks / scale), -8, 7) * scale - blocks).sum(axis=-1, keepdims=True)
            scales, best = np.where(error < best, scale, scales), np.minimum(error, best)
    values = (np.clip(np.round(blocks / scales), -8, 7) + 8).astype(np.uint8)
    return values[..., ::2] | values[..., 1::2] << 4, scales[..., 0].astype(np.float32)


@dataclass
class Int4Linears(Int8Linears):
    """As int8, with 4-bit weights in blocks along the inputs; activations are quantised block by block as they come."""

    takes_uint8: ClassVar[bool] = False

    def linear(self, g: GraphBuilder, name: str, x: ir.Value, weight: Array, bias: Array | None) -> ir.Value:
        if name not in self.ranges:
            return super().linear(g, name, x, weight, bias)
        packed, scales = quantize_blocks(weight)
        inputs: list[ir.Value | None] = [
            x, g.weight(f"{name}.weight_4bit", packed), g.weight(f"{name}.weight_4bit_scale", scales)
        ]  # fmt: skip
        if bias is not None:
            inputs += [None, None, g.weight(f"{name}.bias", bias.reshape(-1).astype(np.float32))]
        attributes: dict[str, Any] = {
            "K": weight.shape[1], "N": weight.shape[0], "bits": 4, "block_size": BLOCK, "accuracy_level": ACCURACY_LEVEL
        }  # fmt: skip
        value: ir.Value = g.op("MatMulNBits", inputs, domain=MICROSOFT, **attributes)
        return value

    def several(self, g: GraphBuilder, name: str, x: ir.Value, parts: Parts) -> Sequence[ir.Value]:
        return cut_apart(self, g, name, x, parts)

"""4-bit weights for the decoder. They are half the bytes of int8, and with few rows a step costs what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from hmc.artifact.rounding import ceil_div
from hmc.compiler.derived import Array
from hmc.compiler.graph import MICROSOFT, GraphBuilder
from hmc.compiler.precisions.int8 import Int8Linears
from hmc.compiler.precisions.linears import Parts, split_product

BLOCK = 32
"""Weights that share a scale. With 32, ONNX Runtime's kernel gives a row the same result in any batch (on AVX2: in any
batch of two rows or more, decision 20). With 64 and more it does not."""
ACCURACY_LEVEL = 4
"""MatMulNBits quantises each block of a row of activations to int8, with a scale of its own."""
CLIPS = np.linspace(0.6, 1.0, 9)
"""Shares of a block's largest weight that its range may reach to."""
ROWS_AT_ONCE = 16
"""Rows of a weight that are quantised together: few enough to stay in the processor's cache."""


def quantize_blocks(weight: Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """weight `[out, in]` → packed 4-bit values `[out, blocks, 16]` and scales `[out, blocks]`: real = (q - 8) · scale.

    A block's scale and its sign come from the clipped range, of a few, with the least squared error. A last block that
    is not full is filled with zeros.
    """
    outputs, width = weight.shape
    count = ceil_div(width, BLOCK)
    packed = np.empty((outputs, count, BLOCK // 2), np.uint8)
    scales = np.empty((outputs, count), np.float32)
    for start in range(0, outputs, ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        padded = np.pad(weight[rows].astype(np.float32, copy=False), ((0, 0), (0, -width % BLOCK)))
        packed[rows], scales[rows] = _quantize_rows(padded.reshape(-1, count, BLOCK))
    return packed, scales


def _quantize_rows(
    blocks: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """blocks `[rows, blocks, 32]` → packed values `[rows, blocks, 16]` and scales `[rows, blocks]`."""
    largest = np.maximum(np.abs(blocks).max(axis=-1, keepdims=True), 1e-8)
    best = np.full_like(largest, np.inf)
    scales = np.ones_like(largest)
    for clip in CLIPS:
        size = largest * np.float32(clip / 7.5)
        steps = np.round(blocks / size)
        for sign, lowest, highest in ((1, -8, 7), (-1, -7, 8)):  # a negative scale only exchanges the two limits
            clipped = np.clip(steps, lowest, highest)
            clipped *= size
            clipped -= blocks
            error = np.square(clipped, out=clipped).sum(axis=-1, keepdims=True)
            better = error < best
            scales = np.where(better, size * np.float32(sign), scales)
            best = np.where(better, error, best)
    values = (np.clip(np.round(blocks / scales), -8, 7) + 8).astype(np.uint8)
    return values[..., ::2] | values[..., 1::2] << 4, scales[..., 0]


@dataclass
class Int4Linears(Int8Linears):
    """As int8, but with 4-bit weights in blocks along the inputs. The operator itself quantises activations, block by
    block."""

    takes_uint8: ClassVar[bool] = False

    def linear(self, g: GraphBuilder, name: str, x: ir.Value, weight: Array, bias: Array | None) -> ir.Value:
        if name not in self.ranges:
            return super().linear(g, name, x, weight, bias)
        packed, scales = self.derived.get(quantize_blocks, weight)
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
        return split_product(self, g, name, x, parts)

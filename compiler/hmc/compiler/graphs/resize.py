"""resize_rows.onnx and resize_tree.onnx: the caches of a batch, copied into larger ones on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from hmc.artifact.bundle.manifest import CacheForm
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.heads import HeadLayout
from hmc.compiler.graph import DTYPES, Dims, GraphBuilder
from hmc.compiler.precisions.attention import MASKED


def author_resize(arch: Architecture, layout: HeadLayout, dtype: str, form: CacheForm) -> GraphBuilder | None:
    """Writes the graph for one form of self-attention caches; None for a layout whose decoder has no open heads.

    Inputs: the caches of a batch, `cross_key_l` and `cross_value_l` `[B, H_l, S, D]`, `past_key_l` and `past_value_l`
    `[R, H_l, T, D]` ("rows") or `[B, H_l, N, D]` ("tree"), for all layers l that have them; "tree" also `node_bias`
    `[B, 1, k, N]`. All are of the type dtype. `source_room` `[1]` and `target_room` `[1]` int64, on the CPU: the new S,
    and the new T or N, not less than the old ones.

    Outputs: `next_X` for each cache X, with all that it held, and zeros in the new positions; `next_node_bias` hides
    the new nodes. They must not lie on the buffers of the inputs.
    """
    g = GraphBuilder(f"resize_{form}")
    resize = _Resize(g, dtype)
    layers, dim = range(arch.decoder_layers), arch.head_dim
    crosses = [(n, len(layout.cross[n])) for n in layers if layout.cross[n]]
    owns = [(n, len(layout.decoder_self[n])) for n in layers if layout.decoder_self[n]]
    if crosses:
        room = g.input("source_room", "int64", [1])
        for layer, heads in crosses:
            resize.author([f"cross_{part}_{layer}" for part in ("key", "value")], ["B", heads, "S", dim], 2, room)
    if owns:
        first, places = ("R", "T") if form == "rows" else ("B", "N")
        room = g.input("target_room", "int64", [1])
        for layer, heads in owns:
            resize.author([f"past_{part}_{layer}" for part in ("key", "value")], [first, heads, places, dim], 2, room)
        if form == "tree":
            resize.author(["node_bias"], ["B", 1, "k", "N"], 3, room, MASKED)
    return g if g.outputs else None


class _Resize:
    """Writes caches with a larger axis."""

    def __init__(self, g: GraphBuilder, dtype: str) -> None:
        self.g, self.dtype = g, dtype
        self._fillings: dict[tuple[int | str, ...], ir.Value] = {}

    def author(self, names: Sequence[str], dims: Dims, axis: int, room: ir.Value, fill: float = 0) -> None:
        """Caches of shape `dims`, with `room` `[1]` positions on `axis`; the new ones hold `fill`."""
        larger = [f"new_{dim}" if index == axis else dim for index, dim in enumerate(dims)]
        for name in names:
            cache = self.g.input(name, self.dtype, dims)
            filling = self._filling(cache, tuple(dims), axis, room, fill)
            self.g.output(self.g.op("Concat", [cache, filling], axis=axis), f"next_{name}", self.dtype, larger)

    def _filling(
        self, cache: ir.Value, dims: tuple[int | str, ...], axis: int, room: ir.Value, fill: float
    ) -> ir.Value:
        """What is appended to caches of shape `dims`. Written once for them all."""
        if dims not in self._fillings:
            g = self.g
            added = g.op("Sub", [room, g.op("Shape", [cache], start=axis, end=axis + 1)])
            parts = [g.op("Shape", [cache], end=axis), added]
            if axis + 1 < len(dims):
                parts.append(g.op("Shape", [cache], start=axis + 1))
            value = ir.tensor(np.array([fill], DTYPES[self.dtype].numpy()))
            self._fillings[dims] = g.op("ConstantOfShape", [g.op("Concat", parts, axis=0)], value=value)
        return self._fillings[dims]

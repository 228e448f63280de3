"""The end of the encoder in device form: keys and values go to the slots of their sentences, where the caches are."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from hmc.compiler.graph import DTYPES, Dims
from hmc.compiler.graphs.device_author import DeviceAuthor


class SlotCaches:
    """Writes the cross keys and values of b encoded sentences into caches of B slots.

    It adds these inputs: `slots` `[b, 1]` int64, the slot of each sentence; a slot may be there twice if its sentences
    are the same. And for each decoder layer l with H_l > 0 open cross heads, `cross_key_l` and `cross_value_l`
    `[B, H_l, S, D]`, S at least the length s of the padded sources. Outputs: `next_cross_key_l`, `next_cross_value_l`,
    the same caches with the sentences in their slots, and zeros after their s positions. Bind them to the buffers of
    the inputs: then only these slots are written; else the caches are copied.

    Keys and values have no bias (`DeviceAuthor`).
    """

    def __init__(self, a: DeviceAuthor, states: ir.Value, shape: ir.Value) -> None:
        """states: of the encoder, `[b·s, d]`; shape: `[2]` int64, b and s."""
        self.a, self.states, self.shape = a, states, shape
        self._zeros: dict[int, ir.Value] = {}

    def author(self) -> None:
        """Writes all layers."""
        layers = [layer for layer in range(self.a.arch.decoder_layers) if self.a.heads("cross", layer)]
        if layers:
            self.slots = self.a.g.input("slots", "int64", ["b", 1])
        for layer in layers:
            self._author(layer)

    def _author(self, layer: int) -> None:
        a, g, prefix = self.a, self.a.g, f"decoder.layers.{layer}.encoder_attn"
        heads, dim, dtype = a.heads("cross", layer), a.arch.head_dim, a.linears.dtype
        dims: Dims = ["B", heads, "S", dim]
        caches = [g.input(f"cross_{part}_{layer}", dtype, dims) for part in ("key", "value")]
        joint = a.products(f"{prefix}.kv_proj", self.states, f"{prefix}.k_proj", f"{prefix}.v_proj")
        joint = g.op("Reshape", [joint, g.op("Concat", [self.shape, g.ints(2 * heads, dim)], axis=0)])
        joint = g.op("Concat", [joint, self._after(heads, caches[0])], axis=1)  # [b, S, 2H, D]
        joint = g.op("Transpose", [joint], perm=[0, 2, 1, 3])
        parts = g.op("Split", [joint], outputs=2, axis=1, num_outputs=2)  # [b, H, S, D] each
        for name, cache, part in zip(("key", "value"), caches, parts, strict=True):
            written = g.op("ScatterND", [cache, self.slots, part])
            g.output(written, f"next_cross_{name}_{layer}", dtype, dims)

    def _after(self, heads: int, cache: ir.Value) -> ir.Value:
        """Zeros for the positions of a cache after those of the sources, `[b, S - s, 2H, D]`. Shared by layers."""
        if heads not in self._zeros:
            g = self.a.g
            count, length = (g.op("Slice", [self.shape, g.ints(n), g.ints(n + 1)]) for n in (0, 1))
            room = g.op("Shape", [cache], start=2, end=3)
            shape = [count, g.op("Sub", [room, length]), g.ints(2 * heads, self.a.arch.head_dim)]
            zero = ir.tensor(np.zeros(1, DTYPES[self.a.linears.dtype].numpy()))
            self._zeros[heads] = g.op("ConstantOfShape", [g.op("Concat", shape, axis=0)], value=zero)
        return self._zeros[heads]

"""What the graphs of a search share: short names of operators, and constants.

A captured CUDA graph runs every node as a kernel, so nodes count. Views (Reshape, Unsqueeze) and whatever computes with
shapes alone cost nothing there. Two limits of ONNX Runtime's CUDA kernels decide on the form:

- TopK fills up to a power of two with the lowest finite number, which beats -inf. So nothing that it ranks is -inf or
  NaN: `NEVER` stands for -inf. Ties go to the lower index, as on a CPU.
- A value on the host cannot be an operand. `counted` makes numbers on the device from sizes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from hmc.compiler.graph import DTYPES, GraphBuilder, of_type

NEVER = -1e300
"""Stands for a total of -inf where totals are ranked."""
UNRANKED = -1e200
"""Ranks below this are those of no hypothesis: NEVER / length ** penalty is lower for every length and penalty."""


class SearchOps:
    """Writes nodes of a search over B sentences of k rows."""

    def __init__(self, g: GraphBuilder, state: ir.Value) -> None:
        """state: any value `[B, k]`; its shape says what B and k are."""
        self.g = g
        self.shape = g.op("Shape", [state])
        """`[2]` int64, on the host: B, k."""
        self.k = g.op("Shape", [state], start=1)

    def do(self, kind: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """One node of one output."""
        value: ir.Value = self.g.op(kind, list(inputs), **attributes)
        return value

    def constant(self, value: float, dtype: str) -> ir.Value:
        """A scalar."""
        name = f"search.{dtype}.{value:g}"
        return self.g.weight(name, of_type(np.asarray(value, np.float64), dtype))

    def cast(self, value: ir.Value, dtype: str) -> ir.Value:
        """In another element type; "bool" too."""
        return self.do("Cast", value, to=int(ir.DataType.BOOL if dtype == "bool" else DTYPES[dtype]))

    def column(self, value: ir.Value) -> ir.Value:
        """`[B]` → `[B, 1]`, a view."""
        return self.do("Unsqueeze", value, self.g.ints(1))

    def flat(self, value: ir.Value) -> ir.Value:
        """`[B, 1]` → `[B]`, a view."""
        return self.do("Squeeze", value, self.g.ints(1))

    def first(self, value: ir.Value, count: ir.Value | None = None) -> ir.Value:
        """`[B, n]` → its first `count` columns, or its first one."""
        return self.do("Slice", value, self.g.ints(0), count or self.g.ints(1), self.g.ints(1))

    def pick(self, value: ir.Value, index: ir.Value) -> ir.Value:
        """value `[B, n]`, index `[B, m]` → `[B, m]`."""
        return self.do("GatherElements", value, index, axis=1)

    def counted(self, end: ir.Value, start: ir.Value | None = None) -> ir.Value:
        """The int64 numbers from `start`, or 0, up to `end`, on the device. Both are `[1]` int64 on the host."""
        scalars = [self.do("Squeeze", v, self.g.ints(0)) for v in (start, end) if v is not None]
        zero, one = (self.g.weight(f"const.scalar_{n}", np.asarray(n, np.int64)) for n in (0, 1))
        return self.do("Range", *([zero] if start is None else []), *scalars, one)

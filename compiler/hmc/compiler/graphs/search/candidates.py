"""Which next tokens the rows of a search may take."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from hmc.artifact.model.architecture import Architecture
from hmc.compiler.graphs.search.state import SearchState

ALWAYS, AT_MINIMUM, NOT = -(2**30), -1, 2**30


def allowed_tokens(state: SearchState, arch: Architecture, ids: ir.Value, *, by_row: bool = True) -> ir.Value:
    """ids `[B, k, K]` int64, or `[B, K]` if not `by_row` → bool: false for pad, and for EOS while a sentence is too
    short to end.

    A token may follow where its number in a table is at most length - minimum: always, from -1 on, or never.
    """
    ops = state.ops
    table = np.full(arch.vocab_size, ALWAYS, np.int32)
    table[arch.eos_id], table[arch.pad_id] = AT_MINIMUM, NOT
    needed = ops.do("Gather", ops.g.weight("search.needed", table), ids, axis=0)
    reached = ops.do("Sub", ops.column(state.lengths), state.minimums)
    if by_row:
        reached = ops.do("Unsqueeze", reached, ops.g.ints(2))
    return ops.do("LessOrEqual", needed, reached)

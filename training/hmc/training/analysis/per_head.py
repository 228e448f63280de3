"""Numbers per head: measured attention by attention on the open heads, reported at the heads' original indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from hmc.artifact.heads import HeadLayout, Kind

Place = tuple[Kind, int]
"""One attention of a model: kind and layer."""
HeadTable = dict[Kind, list[list[float | None]]]
"""kind → layers → heads at original indices; None for a closed head."""
T = TypeVar("T")


def in_order(values: Mapping[Place, Sequence[T]], layout: HeadLayout) -> list[T]:
    """values: one for each open head of each attention → one for each head of `layout.heads()`, in its order."""
    return [values[head.kind, head.layer][layout[head.kind][head.layer].index(head.index)] for head in layout.heads()]

"""What results of masking heads one after another hold, for readers that need no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ORDERS = ("most_important_first", "least_important_first")
WITHIN = 1.0
"""BLEU points that `masked_within` allows by default."""


def masked_within(curve: Sequence[Mapping[str, Any]], drop: float = WITHIN) -> int:
    """Largest number of heads masked, group by group, with BLEU at most `drop` points below that of all heads."""
    whole, most = curve[0]["bleu"]["value"], 0
    for point in curve:
        if whole - point["bleu"]["value"] > drop:
            break
        most = point["masked"]
    return most

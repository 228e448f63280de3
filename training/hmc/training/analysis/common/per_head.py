"""Numbers per head: computed attention by attention, stored in results as one row per open head.

A pruned model numbers its open heads from 0 in every attention. Results name a head by its index in the unpruned model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import KINDS, Head, HeadLayout, Kind

Place = tuple[Kind, int]
"""One attention of a model: kind and layer."""
HeadTable = dict[Kind, list[list[float | None]]]
"""kind → layers → heads at their original indices; None for a closed head."""
Row = dict[str, Any]
"""`kind`, `layer` and `index` of a head, and its values."""
T = TypeVar("T")


def in_order(values: Mapping[Place, Sequence[T]], layout: HeadLayout) -> list[T]:
    """Values of the open heads of each attention → one list in the order of `layout.heads()`."""
    return [values[head.kind, head.layer][layout[head.kind][head.layer].index(head.index)] for head in layout.heads()]


def head_rows(heads: Iterable[Head], values: Iterable[Mapping[str, Any]]) -> list[Row]:
    """One row per head."""
    return [
        {"kind": head.kind, "layer": head.layer, "index": head.index, **value}
        for head, value in zip(heads, values, strict=True)
    ]


def head_of(row: Mapping[str, Any]) -> Head:
    """The head of a row."""
    return Head(cast(Kind, row["kind"]), int(row["layer"]), int(row["index"]))


def model_shape(checkpoint: Checkpoint) -> dict[str, Any]:
    """Fields of a result: `layout` (the open heads) and `heads_per_layer` (of the unpruned model)."""
    return {"layout": checkpoint.layout.to_json(), "heads_per_layer": checkpoint.architecture.heads}


def table_of(data: Mapping[str, Any], value: Callable[[Row], float]) -> HeadTable:
    """The rows `heads` of a result as kind → layers → heads at original indices.

    data: a result's data with `heads` and the fields of `model_shape`. None is a closed head, NaN an open head without
    a row.
    """
    layout = HeadLayout.from_json(data["layout"])
    table: HeadTable = {
        kind: [[math.nan if i in row else None for i in range(data["heads_per_layer"])] for row in layout[kind]]
        for kind in KINDS
    }
    for row in data["heads"]:
        table[row["kind"]][row["layer"]][row["index"]] = value(row)
    return table


def parse_heads(names: Sequence[str], layout: HeadLayout) -> list[Head]:
    """Names such as `cross.0.3` → heads. Raises InvalidRequestError for a name that is no open head of `layout`."""
    known, found = {str(head): head for head in layout.heads()}, []
    for name in names:
        kind, _, rest = name.partition(".")
        layer, _, index = rest.partition(".")
        if kind not in KINDS or not (layer.isdecimal() and index.isdecimal()):
            raise InvalidRequestError(
                f"head {name!r}: write KIND.LAYER.INDEX, e.g. cross.0.3; kinds: {', '.join(KINDS)}"
            )
        if name not in known:
            raise InvalidRequestError(
                f"head {name} is not open in this checkpoint; open heads of that layer: "
                f"{', '.join(h for h in known if h.startswith(f'{kind}.{layer}.')) or 'none'}"
            )
        found.append(known[name])
    return found

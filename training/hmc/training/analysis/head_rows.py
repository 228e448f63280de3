"""Values per head as JSON: a list of rows, one an open head, and the shape of the unpruned model around them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from hmc.artifact.checkpoint import Checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.heads import KINDS, Head, HeadLayout, Kind
from hmc.training.analysis.per_head import HeadTable

Row = dict[str, Any]
"""`kind`, `layer`, `index`, and values."""


def head_rows(heads: Iterable[Head], values: Iterable[Mapping[str, Any]]) -> list[Row]:
    """A row a head."""
    return [
        {"kind": head.kind, "layer": head.layer, "index": head.index, **value}
        for head, value in zip(heads, values, strict=True)
    ]


def head_of(row: Mapping[str, Any]) -> Head:
    """The head a row is about."""
    return Head(cast(Kind, row["kind"]), int(row["layer"]), int(row["index"]))


def model_shape(checkpoint: Checkpoint) -> dict[str, Any]:
    """`layout`: the open heads; `heads_per_layer`: heads of a layer of the unpruned model."""
    return {"layout": checkpoint.layout.to_json(), "heads_per_layer": checkpoint.architecture.heads}


def table_of(data: Mapping[str, Any], value: Callable[[Row], float]) -> HeadTable:
    """A result's `heads` as kind → layers → heads at original indices.

    None is a closed head, NaN an open one without a row. data: holds what `model_shape` gives, too.
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
    """`cross.0.3` → the head. Raises InvalidRequestError for one that cannot be read or is not open in `layout`."""
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
                f"head {name} is closed in this checkpoint, or was never there; open in that layer: "
                f"{', '.join(h for h in known if h.startswith(f'{kind}.{layer}.')) or 'none'}"
            )
        found.append(known[name])
    return found

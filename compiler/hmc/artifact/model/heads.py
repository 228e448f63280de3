"""Heads and head layouts: which attention heads a model keeps (Voita et al. 2019, section 6; Michel et al. 2019)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from hmc.artifact.errors import InvalidRequestError

AttentionKind = Literal["encoder_self", "decoder_self", "cross"]
KINDS: tuple[AttentionKind, ...] = get_args(AttentionKind)
BLIND = "no head of cross-attention would stay open, so the decoder could not see the source; keep one or more"
"""Why a layout is refused whose `sees_source` is false."""


@dataclass(frozen=True, order=True)
class Head:
    """One attention head, by its index in the unpruned model."""

    kind: AttentionKind
    layer: int
    index: int

    def __str__(self) -> str:
        return f"{self.kind}.{self.layer}.{self.index}"


@dataclass(frozen=True)
class HeadLayout:
    """The open heads of a model: for each kind and layer, the original indices of the heads that stay.

    `encoder_self[l]`, `decoder_self[l]` and `cross[l]` are sorted tuples; they may differ in length and may be
    empty (Voita et al. 2019, footnote 9: only the residual connection remains).
    """

    encoder_self: tuple[tuple[int, ...], ...]
    decoder_self: tuple[tuple[int, ...], ...]
    cross: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        for kind in KINDS:
            for layer, indices in enumerate(self[kind]):
                if list(indices) != sorted(set(indices)) or any(i < 0 for i in indices):
                    raise InvalidRequestError(
                        f"head layout {kind}.{layer}: {list(indices)} must be ascending distinct head indices from 0"
                    )

    def __getitem__(self, kind: AttentionKind) -> tuple[tuple[int, ...], ...]:
        layers: tuple[tuple[int, ...], ...] = getattr(self, kind)
        return layers

    @classmethod
    def full(cls, encoder_layers: int, decoder_layers: int, heads: int) -> HeadLayout:
        """Every head open: `heads` in each layer of each kind."""
        row = tuple(range(heads))
        return cls((row,) * encoder_layers, (row,) * decoder_layers, (row,) * decoder_layers)

    @classmethod
    def from_heads(cls, heads: Iterable[Head], encoder_layers: int, decoder_layers: int) -> HeadLayout:
        """The layout that keeps exactly `heads`."""
        kept: dict[str, list[list[int]]] = {
            "encoder_self": [[] for _ in range(encoder_layers)],
            "decoder_self": [[] for _ in range(decoder_layers)],
            "cross": [[] for _ in range(decoder_layers)],
        }
        for head in heads:
            kept[head.kind][head.layer].append(head.index)
        return cls.from_json({kind: [sorted(row) for row in rows] for kind, rows in kept.items()})

    @classmethod
    def from_json(cls, value: Mapping[str, Sequence[Sequence[int]]]) -> HeadLayout:
        """Reads `{"encoder_self": [[0, 3], []], "decoder_self": …, "cross": …}`. Raises InvalidRequestError."""
        if set(value) != set(KINDS):
            raise InvalidRequestError(f"head layout needs exactly the keys {list(KINDS)}, got {sorted(value)}")
        if len(value["decoder_self"]) != len(value["cross"]):
            raise InvalidRequestError("head layout: decoder_self and cross must list the same number of layers")
        for kind in KINDS:
            for layer, row in enumerate(value[kind]):
                if not isinstance(row, list | tuple) or any(type(i) is not int for i in row):
                    raise InvalidRequestError(
                        f"head layout {kind}.{layer}: {json.dumps(row)} must be a list of head indices, whole numbers "
                        "from 0"
                    )
        return cls(**{k: tuple(map(tuple, value[k])) for k in KINDS})

    def to_json(self) -> dict[str, list[list[int]]]:
        """The inverse of `from_json`."""
        return {kind: [list(row) for row in self[kind]] for kind in KINDS}

    def heads(self) -> Iterator[Head]:
        """Open heads in order of kind, layer, index."""
        for kind in KINDS:
            for layer, row in enumerate(self[kind]):
                yield from (Head(kind, layer, index) for index in row)

    @property
    def total(self) -> int:
        """Open heads over all kinds and layers."""
        return sum(len(row) for kind in KINDS for row in self[kind])

    @property
    def sees_source(self) -> bool:
        """True if a head of cross-attention is open: nothing else of a decoder depends on the source."""
        return any(self.cross)

    def counts(self) -> dict[str, list[int]]:
        """Open heads per kind and layer."""
        return {kind: [len(row) for row in self[kind]] for kind in KINDS}

    def contains(self, other: HeadLayout) -> bool:
        """True when every open head of `other` is open here (the levels are *nested*)."""
        return set(other.heads()) <= set(self.heads())

    def restrict(self, other: HeadLayout) -> dict[AttentionKind, list[list[int]]]:
        """For each layer, the positions of `other`'s open heads among the open heads of this layout.

        Raises InvalidRequestError if a head of `other` is closed here.
        """
        missing = [str(head) for head in other.heads() if head.index not in self[head.kind][head.layer]]
        if missing:
            raise InvalidRequestError(f"heads {missing} are already removed from this checkpoint and cannot be opened")
        return {k: [[mine.index(i) for i in row] for mine, row in zip(self[k], other[k], strict=True)] for k in KINDS}


class HeadOrder(Protocol):
    """Kind → for each layer, heads by their original indices, in the order in which tensors have them. That of a
    `HeadLayout` is ascending."""

    def __getitem__(self, kind: AttentionKind, /) -> Sequence[Sequence[int]]: ...


HeadScores = Mapping[AttentionKind, npt.NDArray[np.float32]]
"""A score per head: kind → array `[layers, heads]` (log α, importance …), at original head indices."""


def nested_order(
    layouts: Iterable[HeadLayout], scores: HeadScores | None = None
) -> dict[AttentionKind, list[list[int]]]:
    """All heads of the layouts: first the heads of the smallest layout, then the heads that each larger layout adds.

    The heads of a layout that contains all smaller ones are then the first of every layer. Among the heads that a
    layout adds, heads of higher score come first. Without scores, or if scores are equal, heads of lower index come
    first. So the heads of a layout that was chosen by its scores are the first ones too, whether it is among `layouts`
    or not.
    """
    order: dict[AttentionKind, list[list[int]]] = {}
    for layout in sorted(layouts, key=lambda layout: layout.total):
        for kind in KINDS:
            rows = order.setdefault(kind, [[] for _ in layout[kind]])
            for layer, indices in enumerate(layout[kind]):
                added = [head for head in indices if head not in rows[layer]]
                if scores is not None:
                    by_head = scores[kind][layer]
                    added.sort(key=lambda head: -float(by_head[head]))
                rows[layer] += added
    return order


def rank_heads(scores: HeadScores, layout: HeadLayout) -> list[Head]:
    """Open heads of `layout` from the highest score to the lowest; ties break by kind, layer, index."""
    order = {head: position for position, head in enumerate(layout.heads())}
    return sorted(order, key=lambda h: (-float(scores[h.kind][h.layer, h.index]), order[h]))


def fewest_that_see(scores: HeadScores, layout: HeadLayout) -> int:
    """The smallest number of heads of highest score that includes a head of cross-attention; 0 if `layout` has no such
    head."""
    return next((n for n, head in enumerate(rank_heads(scores, layout), 1) if head.kind == "cross"), 0)


def select_heads(scores: HeadScores, layout: HeadLayout, target: int) -> HeadLayout:
    """Keeps the `target` heads of highest score. Raises InvalidRequestError when the layout has fewer."""
    if not 0 <= target <= layout.total:
        raise InvalidRequestError(
            f"{target} heads: this checkpoint has {layout.total} open heads; choose 0 to {layout.total}"
        )
    kept = rank_heads(scores, layout)[:target]
    return HeadLayout.from_heads(kept, len(layout.encoder_self), len(layout.decoder_self))

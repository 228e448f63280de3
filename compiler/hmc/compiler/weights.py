"""What a level keeps of its checkpoint: which heads, by log α, I_h or another score, and their weights.

Open heads get a width that ONNX Runtime's operators take: GroupQueryAttention takes head dimensions that are multiples
of 8, on CPUs and on CUDA.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.checkpoint.extras import WRITTEN_BY, ScoreName
from hmc.artifact.checkpoint.slimming import reordered_heads, slim_tensors
from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.budgets import HeadBudget
from hmc.artifact.model.heads import BLIND, KINDS, AttentionKind, HeadLayout, HeadOrder, HeadScores, nested_order
from hmc.artifact.rounding import round_up

MULTIPLE = 8
Target = int | HeadBudget | HeadLayout
"""Heads that stay: a number over all kinds, a budget, or a given layout."""
Ranking = ScoreName
"""The score that heads are ranked by."""
BY_DEFAULT: tuple[Ranking, ...] = ("gates", "importance")
"""Without a name: the first of these that a checkpoint has."""


def choose_layout(checkpoint: Checkpoint, target: Target | None, rank_by: Ranking | None = None) -> HeadLayout:
    """The open heads of a level. target None: the heads of the checkpoint.

    A budget keeps the heads that rank best: by log α of the gates (Voita et al. 2019), by I_h (Michel et al. 2019) or
    by another score of the checkpoint. rank_by None: by the gates if there are any, else by I_h. A budget that keeps
    all heads needs no ranking. Raises InvalidRequestError for heads that the checkpoint does not have; where it has no
    scores to rank by, since any choice would then be arbitrary; and where no head of cross-attention would stay.
    """
    layout = _chosen(checkpoint, target, rank_by)
    if not layout.sees_source:
        asked = f"target_heads {target}" if isinstance(target, int | HeadBudget) else "this head layout"
        raise InvalidRequestError(f"{asked}: {BLIND}")
    return layout


def _chosen(checkpoint: Checkpoint, target: Target | None, rank_by: Ranking | None) -> HeadLayout:
    layout = checkpoint.layout
    if target is None:
        return layout
    if isinstance(target, HeadLayout):
        if problems := checkpoint.architecture.layout_problems(target):
            raise InvalidRequestError(f"does not fit this checkpoint: {problems[0]}")
        layout.restrict(target)
        return target
    budget = HeadBudget(((KINDS, target),)) if isinstance(target, int) else target
    asked = f"target_heads {budget}"
    if budget.problems(layout):
        _refuse(budget, layout, asked)
    if budget.heads == budget.available(layout):
        return layout
    return budget.select(head_scores(checkpoint, asked, rank_by), layout)


def head_scores(checkpoint: Checkpoint, asked: str, rank_by: Ranking | None = None) -> HeadScores:
    """The scores by which a checkpoint's heads are ranked: the score that `rank_by` names, or else the first of
    BY_DEFAULT that it has.

    asked: the option that needs the scores, for messages. Raises InvalidRequestError if the checkpoint lacks them.
    """
    scores = _scores(checkpoint, rank_by)
    if scores is None:
        names = (rank_by,) if rank_by else BY_DEFAULT
        lacks = f"has no {rank_by}" if rank_by else "has neither gates nor importance"
        advice = ", or ".join(WRITTEN_BY[name] for name in names)
        raise InvalidRequestError(
            f"{asked}: the checkpoint {lacks} to choose heads by; run {advice}, and compile what that writes"
        )
    return scores


def _scores(checkpoint: Checkpoint, rank_by: Ranking | None) -> HeadScores | None:
    names = (rank_by,) if rank_by else BY_DEFAULT
    return next((scores for name in names if (scores := checkpoint.score(name)) is not None), None)


def _refuse(budget: HeadBudget, layout: HeadLayout, asked: str) -> None:
    [*rest, (kinds, wanted)] = budget.parts
    if rest or kinds != KINDS:
        raise InvalidRequestError(f"{asked}: {budget.problems(layout)[0]}")
    available = f"this checkpoint has {layout.total} open heads"
    if wanted > layout.total:
        raise InvalidRequestError(f"{asked}: {available}; removed heads cannot come back")
    if wanted == 0:
        raise InvalidRequestError(f"{asked}: {BLIND}")
    raise InvalidRequestError(f"{asked}: {available}; choose 1 to {layout.total}")


@dataclass(frozen=True)
class SlimModel:
    """The weights and the layout from which the graphs of a level are written."""

    arch: Architecture
    """The checkpoint's, but `head_dim` is the width that heads have in `tensors`."""
    layout: HeadLayout
    tensors: Tensors
    """Tensors that lose nothing are the checkpoint's own arrays, not copies."""
    order: HeadOrder | None = None
    """In which the tensors have the heads of the layout. None: by their numbers."""

    @property
    def reordered(self) -> bool:
        """Whether the heads of a layer are not in the order of their numbers."""
        order = self.order
        return order is not None and any(list(row) != sorted(row) for kind in KINDS for row in order[kind])


@dataclass(frozen=True)
class OrderedHeads:
    """A checkpoint's tensors, with the heads of each layer in an order of their own."""

    order: HeadOrder
    """Of all heads of the checkpoint."""
    tensors: Tensors

    @classmethod
    def nested(cls, checkpoint: Checkpoint, layouts: Iterable[HeadLayout], rank_by: Ranking | None) -> OrderedHeads:
        """Heads that the smallest of `layouts` keeps come first, so that its weights are the first rows and columns of
        the weights of wider layouts. The other heads follow by the score that ranks heads, if the checkpoint has it."""
        order = nested_order([*layouts, checkpoint.layout], _scores(checkpoint, rank_by))
        return cls(order, reordered_heads(checkpoint.tensors, checkpoint.architecture, checkpoint.layout, order))


def slim_model(checkpoint: Checkpoint, layout: HeadLayout, ordered: OrderedHeads | None = None) -> SlimModel:
    """The checkpoint with the heads of `layout` alone. ordered: its tensors in another order of heads; None: as they
    are. Raises InvalidRequestError for a head that it does not have."""
    arch = checkpoint.architecture
    ordered = ordered or OrderedHeads(checkpoint.layout, checkpoint.tensors)
    tensors = slim_tensors(ordered.tensors, arch, checkpoint.layout, layout, ordered.order)
    kept: dict[AttentionKind, list[list[int]]] = {kind: [] for kind in KINDS}
    for kind in KINDS:
        for row, open_heads in zip(ordered.order[kind], layout[kind], strict=True):
            kept[kind].append([head for head in row if head in open_heads])
    width = round_up(arch.head_dim, MULTIPLE)
    if width == arch.head_dim:
        return SlimModel(arch, layout, tensors, kept)
    wide = arch.model_copy(update={"head_dim": width})
    return SlimModel(wide, layout, widen_heads(tensors, arch, layout, width), kept)


def widen_heads(tensors: Tensors, arch: Architecture, layout: HeadLayout, width: int) -> Tensors:
    """Tensors that compute the same function with heads of `width` features; `width` is at least `arch.head_dim`.

    The new features are the last of each head, and are zero in queries, keys, values and W_O. Operators divide scores
    by √width instead of √head_dim, so queries are multiplied by √(width / head_dim).
    """
    wide = dict(tensors)
    growth = np.float32(np.sqrt(width / arch.head_dim))
    for kind in KINDS:
        for layer, open_heads in enumerate(layout[kind]):
            if not open_heads:
                continue
            attention = arch.attention(kind, layer)
            for name, axis in attention.owned:
                widened = _widen(tensors[name], arch.head_dim, width, axis)
                wide[name] = widened * growth if name in attention.query.tensors else widened
    return wide


def _widen(tensor: np.ndarray, head_dim: int, width: int, axis: int) -> np.ndarray:
    """`[H·head_dim, …]` → `[H·width, …]`; axis 1: `[…, H·head_dim]` → `[…, H·width]`."""
    rows = tensor.T if axis else tensor
    by_head = rows.reshape(-1, head_dim, *rows.shape[1:])
    wide = np.zeros((len(by_head), width, *rows.shape[1:]), rows.dtype)
    wide[:, :head_dim] = by_head
    widened = wide.reshape(-1, *rows.shape[1:])
    return np.ascontiguousarray(widened.T) if axis else widened

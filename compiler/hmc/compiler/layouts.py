"""Which heads a level keeps: a checkpoint's own layout, or its best heads by log α or, without gates, by I_h."""

from __future__ import annotations

from hmc.artifact.checkpoint import Checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.heads import HeadLayout, HeadScores, select_heads


def choose_layout(checkpoint: Checkpoint, target: int) -> HeadLayout:
    """The layout with exactly `target` open heads.

    Cases: (1) target = all open heads of the checkpoint: its own layout; (2) gates: highest log α stay; (3) no gates
    but importance: highest I_h stay (Michel et al. 2019); (4) neither: refused, since any choice would be arbitrary.
    """
    layout = checkpoint.layout
    if target == layout.total:
        return layout
    if target > layout.total:
        raise InvalidRequestError(
            f"--target-heads {target}: this checkpoint has {layout.total} open heads; removed heads cannot come back"
        )
    return select_heads(head_scores(checkpoint, f"--target-heads {target}"), layout, target)


def head_scores(checkpoint: Checkpoint, asked: str) -> HeadScores:
    """What a checkpoint's heads are ranked by: log α or, without gates, I_h.

    Raises InvalidRequestError where it has neither; `asked` is the option that needs them.
    """
    scores = checkpoint.gates or checkpoint.importance
    if scores is None:
        raise InvalidRequestError(
            f"{asked}: the checkpoint has neither gates nor importance to choose heads by; run `hmc prune` on it, or "
            "`hmc analyze importance --save`, and compile what that writes"
        )
    return scores

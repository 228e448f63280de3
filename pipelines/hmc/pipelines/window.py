"""The window of a job that translates text in shards: two shards in work, and of each the longest line first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

AT_ONCE = 2
"""Shards in work at the same time, so that the last sentences of one leave no worker without work."""
ROWS = 64
BEAMS = 8
"""Hypotheses that each worker decodes together: ROWS, or BEAMS sentences of a large beam."""

Shard = TypeVar("Shard")
Line = TypeVar("Line")
Waiting = TypeVar("Waiting")


def worker_rows(beam: int) -> int:
    """Hypotheses that one worker decodes together."""
    return max(ROWS, BEAMS * beam)


def in_turn(shards: Iterable[Shard], submit: Callable[[Shard], Waiting]) -> Iterator[tuple[Shard, Waiting]]:
    """Submits the shards, AT_ONCE of them ahead. Yields each in its turn, with what `submit` returned for it."""
    waiting = deque[tuple[Shard, Waiting]]()
    for shard in shards:
        waiting.append((shard, submit(shard)))
        if len(waiting) == AT_ONCE:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()


def longest_first(
    lines: Sequence[Line], text: Callable[[Line], str], submit: Callable[[Line], Waiting]
) -> list[Waiting]:
    """Submits the lines, the longest text first, so that sentences of one length share a batch without padding.

    Returns what `submit` returned for each, in the order of the lines.
    """
    found = {i: submit(lines[i]) for i in sorted(range(len(lines)), key=lambda i: -len(text(lines[i])))}
    return [found[i] for i in range(len(lines))]

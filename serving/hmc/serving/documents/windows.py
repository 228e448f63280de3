"""Work on many items at once, with results in the order of the items."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


LONG = 4096
"""Characters of the shortest text that is divided in a thread."""
AT_ONCE = 16
"""Items that a thread takes at once."""


async def in_order(
    items: Iterator[Item], work: Callable[[Item], Awaitable[Result]], window: int, *, in_thread: bool = False
) -> AsyncGenerator[tuple[Item, Result]]:
    """Yields each item with what `work` made of it, as soon as it and all before it are ready.

    At most `window` items are under way: taken from `items`, and not yet taken from this iterator. The event loop
    serves others after each. An error of `work` is raised when its turn comes. When the iteration ends early, all work
    under way is cancelled. in_thread: items are taken from `items` in a thread, a few at once, because that may take
    long.
    """
    running: deque[tuple[Item, asyncio.Task[Result]]] = deque()
    ready: deque[Item] = deque()
    more = True
    try:
        while more or running:
            while more and len(running) < window and not (running and running[0][1].done()):
                if not ready:
                    ready += await asyncio.to_thread(_take, items, AT_ONCE) if in_thread else _take(items, 1)
                if not ready:
                    more = False
                else:
                    item = ready.popleft()
                    running.append((item, asyncio.ensure_future(_await(work(item)))))
                    await asyncio.sleep(0)
            if running:
                first, task = running[0]
                result = await task
                running.popleft()
                yield first, result
    finally:
        for _, task in running:
            task.cancel()
        await asyncio.gather(*(task for _, task in running), return_exceptions=True)


def _take(items: Iterator[Item], number: int) -> list[Item]:
    return list(islice(items, number))


async def _await(work: Awaitable[Result]) -> Result:
    return await work

"""Work on many items at once, with results in the order of the items."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


async def in_order(
    items: Iterator[Item], work: Callable[[Item], Awaitable[Result]], window: int
) -> AsyncGenerator[tuple[Item, Result]]:
    """Yields each item with what `work` made of it, as soon as it and all before it are ready.

    At most `window` items are under way: taken from `items`, and not yet taken from this iterator. The event loop
    serves others after each. An error of `work` is raised when its turn comes. When the iteration ends early, all work
    under way is cancelled.
    """
    running: deque[tuple[Item, asyncio.Task[Result]]] = deque()
    more = True
    try:
        while more or running:
            while more and len(running) < window and not (running and running[0][1].done()):
                item = next(items, None)
                if item is None:
                    more = False
                else:
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


async def _await(work: Awaitable[Result]) -> Result:
    return await work

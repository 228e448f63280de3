"""Work on the parts of long texts, many at once, beside an event loop that serves others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

from hmc.serving.documents.documents import AT_ONCE, in_order


async def read(seen: list[int], number: int, *, long: bool) -> list[int]:
    """The items of a text of `number` parts. seen: the threads that find them."""

    def items() -> Iterator[int]:
        for item in range(number):
            seen.append(threading.get_ident())
            yield item

    async def work(item: int) -> int:
        return item

    return [done async for _, done in in_order(items(), work, 8, long=long)]


def test_long_texts_are_divided_by_one_thread_together() -> None:
    """More would hold up the event loop for each other, because Python lets one thread run at a time."""
    seen: list[int] = []

    async def several() -> list[list[int]]:
        return await asyncio.gather(*(read(seen, 3 * AT_ONCE, long=True) for _ in range(8)))

    assert asyncio.run(several()) == [list(range(3 * AT_ONCE))] * 8
    assert len(set(seen)) == 1
    assert threading.get_ident() not in seen


def test_short_texts_need_no_thread() -> None:
    seen: list[int] = []
    assert asyncio.run(read(seen, 5, long=False)) == list(range(5))
    assert set(seen) == {threading.get_ident()}

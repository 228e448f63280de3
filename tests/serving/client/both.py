"""The asynchronous client behind the methods of the synchronous one, so that one test runs with both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

from hmc.serving.client import AsyncClient, Client

T = TypeVar("T")


class Blocking:
    """An `AsyncClient` on an event loop in a thread of its own. Coroutines are awaited, generators are drawn from."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        try:
            self._client = self._run(self._made(*arguments, **named))
        except BaseException:
            self._end()
            raise

    async def _made(self, *arguments: Any, **named: Any) -> AsyncClient:
        return AsyncClient(*arguments, **named)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if not callable(method):
            return method

        def call(*arguments: Any, **named: Any) -> Any:
            made = method(*arguments, **named)
            return self._run(made) if asyncio.iscoroutine(made) else self._drawn(made)

        return call

    def _drawn(self, generator: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    item = self._run(_next(generator))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self._run(generator.aclose())

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._client.close())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _next(generator: AsyncIterator[T]) -> T:
    return await anext(generator)


CLIENTS: dict[str, Any] = {"Client": Client, "AsyncClient": Blocking}

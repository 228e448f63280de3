"""The status of a stream that grpc.aio hides.

If a call ends while a request is being written, grpc.aio puts an error of its own before or in place of the server's
status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc
import grpc.aio

T = TypeVar("T")
HIDDEN = "Internal error from Core"
"""grpc.aio's own error."""
POLLS, POLL_S = 100, 0.005


class Ending:
    """Keeps every status that a call gets. Make it before the first answer is awaited."""

    def __init__(self, call: Any) -> None:
        """call: of `grpc.aio`."""
        self._seen: list[grpc.aio.AioRpcError] = []
        call.add_done_callback(self._ended)

    def _ended(self, call: Any) -> None:
        none = grpc.aio.Metadata()
        trailers = _now(call.trailing_metadata()) or none
        self._seen.append(grpc.aio.AioRpcError(_now(call.code()), none, trailers, _now(call.details())))

    async def sent(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """The error with which the server ended the call, where `error` hides it; else `error`.

        UNAVAILABLE if no other status comes within half a second: the connection broke while a request was sent.
        """
        if not _hides(error):
            return error
        for _ in range(POLLS):
            for seen in self._seen:
                if not _hides(seen):
                    return seen
            await asyncio.sleep(POLL_S)
        none = grpc.aio.Metadata()
        return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, none, none, "the connection broke")


def _hides(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is grpc.StatusCode.INTERNAL and HIDDEN in (error.details() or "")


def _now(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has nothing to wait for: an ended call has its status."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("an ended call of grpc.aio has no status")

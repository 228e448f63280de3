"""What the calls that divide texts do with a leased level."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing

from hmc.artifact.errors import InvalidRequestError
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.documents.dividing import Divided, Dividing, Joined, with_segment
from hmc.serving.documents.documents import LONG, Divider, at, check_keep, in_thread
from hmc.serving.levels.slots import Lease
from hmc.serving.requests.caller import current_caller
from hmc.serving.requests.options import Target, TextOptions
from hmc.serving.requests.results import DocumentPiece, Translation
from hmc.serving.server.streams import WaitingLine
from hmc.serving.wire.rules import AnswerSize
from hmc.serving.wire.status import seconds_left

CHUNK_TEXTS = 16
"""Short texts that are divided before the event loop serves other calls."""
Wait = Callable[[Future[Translation], AnswerSize], Awaitable[Translation]]
"""Waits for a translation and adds it to the size of the answer. Cancelling it cancels the search."""
Run = Callable[[Lease, Sequence[str], DecodeOptions, Sequence[Target]], Awaitable[list[Translation]]]
"""Translates texts that are not divided, all at once."""


class Documents:
    """The texts of one call at one level. Lives on one event loop."""

    def __init__(self, lease: Lease, line: WaitingLine, wait: Wait, texts: TextOptions) -> None:
        """line: of texts that wait for a place in the level's queue."""
        self._lease, self._line, self._wait, self._texts = lease, line, wait, texts
        self._begun = False

    async def translate(
        self, texts: Sequence[str], options: DecodeOptions, targets: Sequence[Target], run: Run, window: int
    ) -> list[Translation]:
        """Translates every text. If one fails, or the call is cancelled, all others are cancelled.

        run: translates the texts if none is divided and no phrase is kept. Otherwise at most `window` sentences are
        under way: the first one is refused if the queue is full, and the others wait for a place.
        """
        check_keep(options, self._texts)
        size = None if self._texts.keep else AnswerSize()  # of what is submitted with `keep` most is dropped again
        divider = self._divider(options, size, wait_at_first=False)
        divided = await self._divided(divider.dividing, texts)
        total = AnswerSize()
        if all(each.whole for each in divided) and not self._texts.keep:
            done = await run(self._lease, texts, options, targets)
            if not self._texts.return_segments:
                return done
            return [total.add(with_segment(*pair)) for pair in zip(divided, done, strict=True)]
        async with aclosing(divider.translate(divided, targets, window)) as results:
            return [total.add(translation) async for translation in results]

    async def stream(self, text: str, options: DecodeOptions, joined: Joined) -> AsyncGenerator[DocumentPiece]:
        """Yields the pieces of one document. joined: see `Divider.document`."""
        divider = self._divider(options, None, wait_at_first=True)
        async with aclosing(divider.document(text, joined)) as found:
            async for piece in found:
                yield DocumentPiece(piece.text, piece.segment, self._lease.level.name, self._lease.bundle_version)

    async def _divided(self, dividing: Dividing, texts: Sequence[str]) -> list[Divided]:
        """How each text is divided. Raises InvalidRequestError with the index of a text that cannot be."""
        found: list[Divided] = []
        for index, text in enumerate(texts):
            try:
                divided = dividing.checked(text) if len(text) < LONG else await in_thread(dividing.checked, text)
            except InvalidRequestError as error:
                raise at(index, error) from error
            found.append(divided)
            if index % CHUNK_TEXTS == 0:
                await asyncio.sleep(0)
        return found

    def _divider(self, options: DecodeOptions, size: AnswerSize | None, *, wait_at_first: bool) -> Divider:
        self._begun = wait_at_first

        async def submit(text: str, options: DecodeOptions, target: Target) -> Translation:
            if self._begun:
                future = await self._line.submit(self._lease, text, options, target)
            else:
                future = self._lease.submit(text, options, target, caller=current_caller.get(), within_s=seconds_left())
                self._begun = True
            return await self._wait(future, size or AnswerSize())

        dividing = Dividing(self._lease.slot.translator.source, options, self._texts, self._lease.code)
        return Divider(dividing, submit)

"""A text of several parts as one search after the other: it has one place in the queue of its level, as any text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from hmc.engine.scheduling.postprocessor import announce_cancellation, set_exception, set_result
from hmc.serving.documents.splitting import Part, SplitText, TextBuilder
from hmc.serving.requests.options import Target
from hmc.serving.requests.results import TextProgress, Translation

Submit = Callable[[str, Target, TextProgress | None, bool], Future[Translation]]
"""Queues a part: its text, its target, what gets its certain text, and whether it follows another part."""


class InTurn:
    """Translates the parts of one text. Each is queued when the one before is translated."""

    def __init__(
        self, split: SplitText, parts: Sequence[Part], submit: Submit, target: Target, progress: TextProgress | None
    ) -> None:
        """Queues the first part, and raises as `submit` does. target: the beginning of the first part's translation.
        progress: see `Translator.submit`."""
        self.future: Future[Translation] = Future()
        """The translation of the text. Cancelling it cancels the part that runs."""
        self._parts = iter(parts)
        self._builder = TextBuilder(split, segments=False)
        self._submit = submit
        self._target = target
        self._progress = progress
        self._said = ""
        self._running: Future[Translation] | None = None
        self._begin = time.perf_counter()
        self._queue_s: float | None = None
        self.future.add_done_callback(self._cancel)
        self._next(follows=False)

    def _next(self, *, follows: bool) -> None:
        for part in self._parts:
            if part.sent is None:
                self._builder.add(part, None)
                self._say_rest()
                continue
            target = Target() if follows else self._target
            self._running = self._submit(part.sent, target, self._say if self._progress else None, follows)
            if self.future.cancelled():
                self._running.cancel()
            self._running.add_done_callback(partial(self._ended, part))
            return
        queue_s = self._queue_s or 0.0
        compute_s = time.perf_counter() - self._begin - queue_s
        set_result(self.future, replace(self._builder.translation(), queue_s=queue_s, compute_s=compute_s))

    def _ended(self, part: Part, running: Future[Translation]) -> None:
        if self.future.done():
            return
        if running.cancelled():
            self.future.cancel()
        elif (error := running.exception()) is not None:
            set_exception(self.future, error)
        else:
            done = running.result()
            if self._queue_s is None:
                self._queue_s = done.queue_s
            self._builder.add(part, done)
            try:
                self._say_rest()
                self._next(follows=True)
            except Exception as failure:  # noqa: BLE001 - the level was closed meanwhile, or cannot take this part
                set_exception(self.future, failure)

    def _cancel(self, future: Future[Translation]) -> None:
        announce_cancellation(future)
        if future.cancelled() and self._running is not None:
            self._running.cancel()

    def _say(self, piece: str) -> None:
        assert self._progress is not None
        self._said += piece
        self._progress(piece)

    def _say_rest(self) -> None:
        """Gives the text so far to `progress` that it does not have yet."""
        if self._progress is None:
            return
        text = self._builder.translation().text
        if len(text) > len(self._said) and text.startswith(self._said):
            self._say(text[len(self._said) :])

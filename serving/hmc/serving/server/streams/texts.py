"""One text of a stream, from its request to its answer. It costs no task: the event loop calls it when it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from hmc.artifact.errors import DeadlineExceededError
from hmc.serving.levels.slots import Lease
from hmc.serving.requests.answers import Answer
from hmc.serving.requests.results import Translation
from hmc.serving.server.observing.metrics import RequestRecord
from hmc.serving.wire.limits import AnswerSize


class StreamText:
    """Make it when the text is read, and begin it in its `with` block: an error that leaves the block becomes the
    answer of this text, and the other texts of the stream go on."""

    def __init__(self, ended: Callable[[RequestRecord, BaseException | None], None]) -> None:
        """ended: called once with the record of the text, and with its error if it has failed."""
        self.record = RequestRecord()
        self.future: asyncio.Future[Any]
        """Done when there is an answer. Cancelling it gives the text up. Set when the `with` block has been left."""
        self._ended = ended
        self._lease: Lease | None = None
        self._error: BaseException | None = None
        self._timer: asyncio.TimerHandle | None = None

    def served_by(self, lease: Lease) -> None:
        """The level that translates the text. The lease ends with the text."""
        self._lease = lease
        self.record.served_by(lease)

    def wait_for(self, translation: asyncio.Future[Translation], until: float | None, within_ms: int) -> None:
        """The translation, which the text takes as its own: it is cancelled with it. until: the time of the event loop
        at which the text fails, because it may take `within_ms`. None: it may take any time."""
        self.future = translation
        translation.add_done_callback(self._done)
        if until is not None:
            self._timer = translation.get_loop().call_at(until, self._expire, within_ms)

    def answer(self) -> Answer:
        """The answer, or the error of the text, which is raised. Call it when `future` is done."""
        if self._error is not None:
            raise self._error
        assert self.record.answer is not None
        return self.record.answer

    def __enter__(self) -> StreamText:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            return False
        self._end(error)
        self.future = asyncio.get_running_loop().create_future()
        self.future.set_result(None)
        return isinstance(error, Exception)

    def _expire(self, within_ms: int) -> None:
        if not self.future.done():
            self.future.set_exception(out_of_time(within_ms))

    def _done(self, translation: asyncio.Future[Translation]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if translation.cancelled():
            self._end(asyncio.CancelledError())
        elif (error := translation.exception()) is not None:
            self._end(error)
        else:
            self._answered(translation.result())

    def _answered(self, translation: Translation) -> None:
        assert self._lease is not None
        try:
            self.record.answer = answer_of([AnswerSize().add(translation)], self._lease)
        except Exception as error:  # noqa: BLE001 - such as an answer that is too large; it is this text's error
            self._end(error)
        else:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        self._error = error
        if self._lease is not None:
            self._lease.end()
        self._ended(self.record, error)


def out_of_time(milliseconds: int) -> DeadlineExceededError:
    """The error of a text that was not translated within its own time."""
    return DeadlineExceededError(
        f"the text was not translated within its timeout_ms of {milliseconds}: allow more, or choose a level with "
        "fewer heads"
    )


def answer_of(translations: Sequence[Translation], lease: Lease) -> Answer:
    """The answer to a call, with the times of its texts together. Blank texts took none."""
    computed = [t for t in translations if not t.blank]
    queue_s = min((t.queue_s for t in computed), default=0.0)
    end_s = max((t.queue_s + t.compute_s for t in computed), default=0.0)
    times = 1000.0 * queue_s, 1000.0 * (end_s - queue_s)
    return Answer(tuple(translations), lease.level.name, lease.bundle_version, *times)

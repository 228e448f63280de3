"""Formats of the log."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from hmc.serving.requests.call import present_call

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
SAFE = (OSError, MemoryError)
"""Errors whose messages hold no part of a text. So do those of ONNX Runtime, which gets numbers only."""
SAFE_MODULES = ("onnxruntime.",)
WITHHELD = "(message withheld: it may quote a text; --log-texts shows it)"


def set_up(log_format: str = "text", *, texts: bool = False, process: int | str | None = None) -> None:
    """Makes the log of this process go to stderr. log_format: "text" or "json". texts: messages of unexpected errors
    may quote texts. process: which of several this is, for every line."""
    handler = logging.StreamHandler()
    kind = JsonLines if log_format == "json" else TextLines
    handler.setFormatter(kind(texts=texts, process=process))
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)


class TextLines(logging.Formatter):
    """A line for people: time, level, message, and what is known of the call."""

    def __init__(self, *, texts: bool = False, process: int | str | None = None) -> None:
        """texts, process: as for `set_up`."""
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._texts = texts
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        other = record.exc_text
        record.exc_text = None  # what another handler has made of the error is not reused
        try:
            return super().format(record)
        finally:
            record.exc_text = other

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = fields_of(record)
        names = ("milliseconds", "request_id", "caller")
        named = [f"{name}={_on_one_line(fields[name])}" for name in names if fields.get(name)]
        if self._process is not None:
            named.append(f"process={self._process}")
        return " ".join((super().formatMessage(record), *named))

    def formatException(self, ei: Any) -> str:
        return describe(ei, texts=self._texts)


def _on_one_line(value: object) -> str:
    """A value as text; one that could begin another line of a log as Python writes it."""
    text = str(value)
    return text if text.isprintable() else repr(text)


class JsonLines(logging.Formatter):
    """An object a line: time (UTC), level, message, and what is known of the call."""

    def __init__(self, *, texts: bool = False, process: int | str | None = None) -> None:
        """texts, process: as for `set_up`."""
        super().__init__()
        self._texts = texts
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if self._process is not None:
            line["process"] = self._process
        if record.exc_info:
            line["error"] = describe(record.exc_info, texts=self._texts)
        return json.dumps(line, ensure_ascii=False, default=str)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What is known of the call in which a line is written, and fields of the line's own."""
    call = present_call()
    known = {}
    if call.method:
        known = {"request_id": call.request_id, "caller": call.principal.name, "rpc": call.method}
    return {**known, **getattr(record, "fields", {})}


def describe(error: ExcInfo, *, texts: bool) -> str:
    """The traceback of an error and of those that led to it. Without `texts`, messages that may quote a text are
    withheld."""
    if texts or error[1] is None:
        return "".join(traceback.format_exception(error[1] or sys.exc_info()[1])).rstrip()
    lines: list[str] = []
    following: BaseException | None = error[1]
    seen: set[int] = set()
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        kind = type(following)
        safe = isinstance(following, SAFE) or kind.__module__.startswith(SAFE_MODULES)
        said = f"{kind.__qualname__}: {following if safe else WITHHELD}\n"
        frames = ["Traceback (most recent call last):\n", *traceback.format_tb(following.__traceback__)]
        lines = [*frames, said, *(["\nwhich led to\n\n"] if lines else []), *lines]
        shown = following.__suppress_context__
        following = following.__cause__ or (None if shown else following.__context__)
    return "".join(lines).rstrip()

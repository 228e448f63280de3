"""Translating a file of any size, line by line, with either client."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing, closing
from itertools import repeat
from pathlib import Path
from typing import Any, TypedDict, Unpack

from hmc.serving.client import calls
from hmc.serving.client.aio import AsyncClient
from hmc.serving.client.calls import Level
from hmc.serving.client.client import Client
from hmc.serving.client.files import FileProgress, FileTranslation
from hmc.serving.client.window import Streaming
from hmc.serving.requests.options import DecodeOptions


class FileOptions(TypedDict, total=False):
    """How a file is translated."""

    target_prefix: str
    """Every translation begins with this text."""
    restart: bool
    """Drop what an earlier run has left, instead of going on after its last line."""
    progress: Callable[[FileProgress], None] | None
    """Called after each line."""
    stream: Streaming
    """See `Streaming`; a file is always written in order."""


def translate_file(
    client: Client,
    source: Path | str,
    output: Path | str,
    level: Level = None,
    options: DecodeOptions | None = None,
    timeout: float | None = None,
    **more: Unpack[FileOptions],
) -> FileProgress:
    """Translates each line of a UTF-8 file to a line of `output`, with one stream and with bounded memory.

    A run that was stopped, also by a kill, goes on after its last line when it is started again with the same source
    and options. Until the end, lines are in `OUTPUT.part`. more: see `FileOptions`.

    Raises InvalidRequestError for a line that the server refuses, with its number, and for files that cannot be used or
    have changed since the last run; and what `Client.translate_stream` raises.
    """
    job, named = _job(source, output, level, options, more)
    with job, closing(client.translate_stream(job.texts(), level, options, timeout, **named)) as answers:
        for answer in answers:
            job.answered(answer)
        return job.finish()


async def translate_file_async(
    client: AsyncClient,
    source: Path | str,
    output: Path | str,
    level: Level = None,
    options: DecodeOptions | None = None,
    timeout: float | None = None,
    **more: Unpack[FileOptions],
) -> FileProgress:
    """As `translate_file`, for asyncio. Files are read and written on the event loop, a line at a time."""
    job, named = _job(source, output, level, options, more)
    with job:
        async with aclosing(client.translate_stream(job.texts(), level, options, timeout, **named)) as answers:
            async for answer in answers:
                job.answered(answer)
        return job.finish()


def _job(
    source: Path | str, output: Path | str, level: Level, options: DecodeOptions | None, more: FileOptions
) -> tuple[FileTranslation, dict[str, Any]]:
    """The run over the file, and the further arguments of its stream."""
    prefix, stream = more.get("target_prefix", ""), more.get("stream", {})
    model = {key: value for key, value in stream.items() if key in ("model", "source_language", "target_language")}
    settings = calls.settings(level, options, **model)  # type: ignore[arg-type]  # texts, all three
    key = {name: message and message.SerializeToString(deterministic=True).hex() for name, message in settings.items()}
    job = FileTranslation(
        Path(source),
        Path(output),
        {**key, "target_prefix": prefix},
        restart=more.get("restart", False),
        progress=more.get("progress"),
    )
    named: dict[str, Any] = {**stream, "in_order": True}
    if prefix:
        named["target_prefixes"] = repeat(prefix)
    return job, named

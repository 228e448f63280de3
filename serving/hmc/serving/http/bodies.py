"""Bodies of requests as messages, and messages as JSON, by protobuf's JSON mapping."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from starlette.requests import ClientDisconnect, Request

from hmc.artifact.errors import InvalidRequestError
from hmc.serving.http.call import HttpError, invalid

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
"""Content types."""
MAX_BODY_BYTES = 16 * 1024 * 1024
"""Largest body of a request."""
BODY_SECONDS = 60.0
"""Seconds in which the whole body of a request must have arrived."""
THREAD_BYTES = 64 * 1024
"""Larger bodies are read in a thread, so that the event loop goes on."""
MAX_DEPTH = 20
"""Levels of nested values in a body; the deepest message of the protocol has five."""
UNNAMED = 20
"""Unknown fields that an error names at most."""


class Body:
    """The body of a request. It is read when the call has been admitted, and so after its token was checked."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._ended = asyncio.Event()

    async def read(self, most: int = MAX_BODY_BYTES) -> bytes:
        """Reads the whole body, once. Raises HttpError if it has more than `most` bytes or is too slow, and
        CancelledError if the client leaves."""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in self._request.stream():
                    size += len(part)
                    if size > most:
                        raise _too_large(most)
                    parts.append(part)
        except TimeoutError:
            late = invalid(f"the body did not arrive within {BODY_SECONDS:g} seconds", 408)
            late.headers["Connection"] = "close"
            raise late from None
        except ClientDisconnect:
            raise asyncio.CancelledError from None
        finally:
            self._ended.set()
        return b"".join(parts)

    async def disconnected(self) -> None:
        """Returns when the client has left. While the body is read, `read` notices a client that leaves."""
        await self._ended.wait()
        while (await self._request.receive())["type"] != "http.disconnect":
            pass


def _too_large(most: int) -> HttpError:
    return invalid(
        f"the body is larger than {most // 2**20} MiB, the most that is read: send fewer texts in a call", 413
    )


def check_unpacked(request: Request) -> None:
    """Raises HttpError if the body is packed."""
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if packed not in ("identity", ""):
        raise invalid(f"the body is packed ({packed}): send it without Content-Encoding", 415)


def check_type(request: Request, kind: str) -> None:
    """Raises HttpError unless the body is declared as of this kind, such as `JSON`, and not packed.

    This keeps other web sites out of a browser's session, because a page may send a form anywhere, but JSON only to
    servers that allow it.
    """
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if declared != kind:
        raise invalid(f"the content type is {declared or 'missing'}: send `Content-Type: {kind}`", 415)
    check_unpacked(request)


async def read_message(body: bytes, kind: Descriptor) -> Message:
    """As `message_from_json`; large bodies are read in a thread."""
    if len(body) > THREAD_BYTES:
        return await asyncio.to_thread(message_from_json, body, kind)
    return message_from_json(body, kind)


def message_from_json(body: bytes, kind: Descriptor) -> Message:
    """Reads a message. Raises InvalidRequestError; it names all unknown fields."""
    try:
        data = json.loads(body, object_pairs_hook=_object, parse_constant=_constant)
    except UnicodeDecodeError as error:
        raise InvalidRequestError("the body is not UTF-8; convert it to UTF-8") from error
    except json.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequestError("the body is nested too deeply") from error
    except ValueError as error:
        raise InvalidRequestError(f"the body cannot be read: {error}") from error
    return message_from_data(data, kind)


def message_from_data(data: Any, kind: Descriptor) -> Message:
    """Makes a message from what JSON said. Raises InvalidRequestError."""
    if not isinstance(data, dict):
        raise InvalidRequestError(f"the body must be a JSON object with the fields of {kind.name}")
    unknown = list(_unknown(data, kind, ""))
    if unknown:
        more = f" and {len(unknown) - UNNAMED} more" if len(unknown) > UNNAMED else ""
        names = ", ".join(field.json_name for field in kind.fields)
        raise InvalidRequestError(
            f"unknown fields: {', '.join(unknown[:UNNAMED])}{more}; {kind.name} has {names or 'no fields'}"
        )
    message = GetMessageClass(kind)()
    try:
        json_format.ParseDict(data, message, max_recursion_depth=MAX_DEPTH)
    except (json_format.ParseError, ValueError, TypeError, RecursionError, OverflowError) as error:
        raise InvalidRequestError(_reason(error)) from error
    return message


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict[str, Any]()
    for name, value in pairs:
        if name in made:
            raise ValueError(f"{name!r} is given twice")
        made[name] = value
    return made


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _unknown(data: dict[str, Any], kind: Descriptor, path: str) -> Iterable[str]:
    known: dict[str, FieldDescriptor] = {name: field for field in kind.fields for name in (field.name, field.json_name)}
    found = set[str]()
    for name, value in data.items():
        field = known.get(name)
        if field is None:
            yield repr(path + name)[1:-1]
            continue
        if field.name in found:
            raise InvalidRequestError(f"{path}{field.name} is given twice, as {field.name} and {field.json_name}")
        found.add(field.name)
        if field.message_type is not None:
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, dict):
                    yield from _unknown(item, field.message_type, f"{path}{name}.")


def _reason(error: Exception) -> str:
    reason = str(error).encode("utf-8", "backslashreplace").decode()
    return f"the body does not fit: {reason}"


def data_of(message: Message) -> dict[str, Any]:
    """A message as JSON data: names in lowerCamelCase, empty and zero fields included, 64-bit integers as strings."""
    data: dict[str, Any] = json_format.MessageToDict(message, always_print_fields_with_no_presence=True)
    return data


async def json_of(message: Message) -> bytes:
    """A message as JSON. Large ones are written in a thread."""
    if message.ByteSize() > THREAD_BYTES:
        return await asyncio.to_thread(_dump, message)
    return _dump(message)


def _dump(message: Message) -> bytes:
    return dump(data_of(message))


def dump(data: Any) -> bytes:
    """JSON in UTF-8, on one line."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()

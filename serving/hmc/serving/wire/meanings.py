"""What each status of a call means and what to do about it, and which calls can end with it.

docs/statuses.md is written from here: `python -m hmc.serving.wire.meanings docs/statuses.md`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from hmc.serving.wire.http_status import HTTP_STATUS
from hmc.serving.wire.status import TABLE
from hmc.v1 import translation_pb2 as pb


@dataclass(frozen=True)
class Meaning:
    """A status: when a call ends with it, and what the caller should do."""

    when: str
    what_to_do: str
    again: str
    """Whether the same request may be sent again: `yes`, `later` (after a pause) or `no`."""


Code = grpc.StatusCode
MEANINGS: dict[grpc.StatusCode, Meaning] = {
    Code.OK: Meaning("The call succeeded.", "Nothing.", "–"),
    Code.CANCELLED: Meaning(
        "The caller cancelled the call. Its work is dropped at the next decoder step.", "Nothing.", "yes"
    ),
    Code.INVALID_ARGUMENT: Meaning(
        "A value of the request is out of its range, a text is too long or not UTF-8, the answer would be too large, "
        "or the bytes are not a message of the method.",
        "Mend the values that the message names. The details list each field (`google.rpc.BadRequest`).",
        "no",
    ),
    Code.DEADLINE_EXCEEDED: Meaning(
        "The deadline of the call, or `timeout_ms` of a stream's text, passed. The work is dropped at the next decoder "
        "step. Or the server saw at once, from its measured speed, that the deadline cannot be met.",
        "Allow more time, send less, or choose a level with fewer heads.",
        "yes",
    ),
    Code.NOT_FOUND: Meaning(
        "No level or model has the name, or none meets the selector.",
        "Take one of those that the message lists; `ListLevels` and `ListModels` list them too.",
        "no",
    ),
    Code.RESOURCE_EXHAUSTED: Meaning(
        "The queue is full; or the rate of the caller is used up; or the message is larger than 64 MiB, or its "
        "metadata are larger than `--max-metadata-kib`. Texts of a stream wait instead.",
        "Send again after the time in the trailer `grpc-retry-pushback-ms`, or choose a cheaper level. If the message "
        "is too large, split it.",
        "later",
    ),
    Code.FAILED_PRECONDITION: Meaning(
        "The level is not loaded; or it is the default level and cannot be unloaded; or the bundle of a reload is not "
        "whole; or a file of the bundle has changed since it was checked; or the device cannot be used or has no room.",
        "Change what the message names first, such as loading the level.",
        "no",
    ),
    Code.UNIMPLEMENTED: Meaning(
        "The server does not know the method: it is older than the client, or the name is wrong.",
        "Upgrade the server, or use another call.",
        "no",
    ),
    Code.INTERNAL: Meaning(
        "The server has a bug. Or the level stopped and restarts. Or the model's scores of the text are not finite.",
        "Report a bug with the reference in the message; the server's log has the details under it. If the level "
        "restarted, send the text again. If scores are not finite, choose another level and compile the bundle again.",
        "later",
    ),
    Code.UNAVAILABLE: Meaning(
        "The server cannot be reached, is starting, or is shutting down.",
        "Try again, or at another server. While levels load, those that are loaded already serve.",
        "later",
    ),
    Code.UNAUTHENTICATED: Meaning(
        "The server requires a token, and the call has none or another one; or the token was taken out of the file "
        "while a stream went on.",
        "Send `authorization: Bearer TOKEN` in the metadata.",
        "no",
    ),
    Code.PERMISSION_DENIED: Meaning(
        "The caller lacks the scope that the message names; or the bundle of a reload is not below `--bundle-root`.",
        "Ask for a token with the scope, or put the bundle below the folder that the message names.",
        "no",
    ),
}
EVERY_CALL = {
    Code.OK, Code.CANCELLED, Code.INVALID_ARGUMENT, Code.DEADLINE_EXCEEDED, Code.UNIMPLEMENTED, Code.INTERNAL,
    Code.UNAVAILABLE, Code.UNAUTHENTICATED, Code.PERMISSION_DENIED, Code.RESOURCE_EXHAUSTED,
}  # fmt: skip
"""Statuses that every call can end with. RESOURCE_EXHAUSTED: any request can be larger than a message may be."""
WITH_A_LEVEL = EVERY_CALL | {Code.NOT_FOUND, Code.FAILED_PRECONDITION}
STATUSES_OF_CALLS: dict[str, set[grpc.StatusCode]] = {
    "Translate": WITH_A_LEVEL,
    "TranslateStream": EVERY_CALL,  # an error of one text is in its answer
    "TranslateTokens": WITH_A_LEVEL,
    "TranslateDocument": WITH_A_LEVEL,
    "Score": WITH_A_LEVEL,
    "ListLevels": EVERY_CALL | {Code.NOT_FOUND},
    "ListModels": EVERY_CALL,
    "LoadLevel": WITH_A_LEVEL,
    "UnloadLevel": WITH_A_LEVEL,
    "Reload": WITH_A_LEVEL,
    "SetDefaultLevel": WITH_A_LEVEL,
}
STATUSES_OF_TEXTS = WITH_A_LEVEL - {
    Code.OK,
    Code.CANCELLED,
    Code.UNIMPLEMENTED,
    Code.UNAUTHENTICATED,
    Code.PERMISSION_DENIED,
}
"""Codes of the `Error` in the answer to one text of a stream."""
INTRODUCTION = """# Statuses

Every status that a call can end with, what it means and what to do. This page is written by `make docs` from
`serving/hmc/serving/wire/meanings.py`, and a test compares both.

The message of a status says what is wrong in English. The trailing metadata has `x-request-id`: the name that the
call sent under this key, or one that the server made. The server's log has it with every unexpected error.

With `INVALID_ARGUMENT`, the details of the status (`grpc-status-details-bin`) hold a `google.rpc.BadRequest`: each
field at fault with its path and a description. Python: `InvalidRequestError.violations`. In a stream, the `Error` of a
text has the same list as `violations`. Not all are listed for a request of more than 1 MiB (the first only), and when
they do not fit into the trailers (the last one then says how many more there are).
"""


def page() -> str:
    """The page of statuses, as Markdown."""
    lines = [
        INTRODUCTION,
        "| status | code | HTTP | when | what to do | send again | in Python |",
        "|---|---|---|---|---|---|---|",
    ]
    for code, meaning in MEANINGS.items():
        number: int = code.value[0]
        errors = ", ".join(f"`{kind.__name__}`" for kind, known in TABLE if known is code) or "–"
        lines.append(
            f"| `{code.name}` | {number} | {HTTP_STATUS[code]} | {meaning.when} | {meaning.what_to_do} "
            f"| {meaning.again} | {errors} |"
        )
    lines += ["", "## By call", "", "| call | statuses |", "|---|---|"]
    services: Any = pb.DESCRIPTOR.services_by_name
    for service in services.values():
        for method in service.methods:
            lines.append(f"| `{service.name}.{method.name}` | {_names(STATUSES_OF_CALLS[method.name])} |")
    lines.append(f"| one text of `TranslateStream` (`Error.code`) | {_names(STATUSES_OF_TEXTS)} |")
    return "\n".join(lines) + "\n"


def _names(codes: set[grpc.StatusCode]) -> str:
    return ", ".join(f"`{code.name}`" for code in MEANINGS if code in codes)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")

"""The errors of an operation: an answer for each HTTP status that it can end with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc

from hmc.serving.wire.status import HTTP_STATUS, MEANINGS

Json = dict[str, Any]
NO_ANSWER = (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED)
"""Statuses that are no errors, or that nobody reads: a caller who cancels has closed the connection."""
OF_BODIES = {
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is declared as another type.",
}
RETRY_AFTER: Json = {
    "Retry-After": {"description": "Seconds after which to try again.", "schema": {"type": "integer", "minimum": 1}}
}


def errors_of(statuses: Iterable[grpc.StatusCode], has_body: bool, schema: str = "Failure") -> Json:
    """The error answers of an operation. statuses: those its call can end with. has_body: whether it reads a body.

    schema: the name of the errors' schema.
    """
    texts: dict[int, list[str]] = {}
    for code, meaning in MEANINGS.items():
        if code in statuses and code not in NO_ANSWER:
            texts.setdefault(HTTP_STATUS[code], []).append(f"{code.name}: {meaning.when}")
    if has_body:
        for status, text in OF_BODIES.items():
            texts[status] = [text]
    return {str(status): _error(status, " ".join(found), schema) for status, found in sorted(texts.items())}


def _error(status: int, description: str, schema: str) -> Json:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    answer: Json = {"description": description, "content": content}
    if status in (429, 503):
        answer["headers"] = RETRY_AFTER
    return answer

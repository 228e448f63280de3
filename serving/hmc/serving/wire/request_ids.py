"""The name of each call, which the client may choose, and which the log and the answer have."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from contextvars import ContextVar

from hmc.artifact.errors import InvalidRequestError, Violation

KEY = "x-request-id"
"""The metadata key, in requests and in trailing metadata."""
ALLOWED = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Set within a call: its name."""


def new_id() -> str:
    """Makes a random name."""
    return uuid.uuid4().hex


def sent_id(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The name in the metadata of a call; None if it has none. Raises InvalidRequestError if the name is malformed."""
    for key, value in metadata:
        if key == KEY:
            name = value if isinstance(value, str) else ""
            if not ALLOWED.fullmatch(name):
                message = f"{KEY} in the metadata: give 1 to 128 letters, digits and . _ : / + = @ - of ASCII"
                raise InvalidRequestError(message, [Violation(KEY, message)])
            return name
    return None

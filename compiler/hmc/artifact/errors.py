"""The errors that all rooms raise. They have one base class, so that the CLI and the service map them in one place."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


class HmcError(Exception):
    """Something a user can act on. The message says what is wrong and what to do."""

    retry_after_s: float | None = None
    """Seconds after which the same request may succeed. Negative: it is useless to send it again. None: unknown."""
    request_id: str | None = None
    """The name of the call that failed, in the log of the service. None: it was no call."""


class InvalidArtifactError(HmcError):
    """A checkpoint or bundle that cannot be used. `problems` lists everything found, not only the first."""

    def __init__(self, what: str, problems: list[str], fix: str) -> None:
        self.what = what
        self.problems = problems
        self.fix = fix
        listed = "\n".join(f"  - {problem}" for problem in problems)
        super().__init__(f"{what} cannot be used:\n{listed}\n{fix}")


@dataclass(frozen=True)
class Violation:
    """An invalid value of a request."""

    field: str
    """The path of the field, such as `options.beam_size` or `texts[3]`."""
    description: str
    """What is wrong with it and what to do about it."""

    def named(self, name: str) -> str:
        """The description of a field that the caller knows by another name, such as `line 3`."""
        if not self.description.startswith(self.field):
            return f"{name}: {self.description}"
        return name + self.description.removeprefix(self.field)


class InvalidRequestError(HmcError):
    """A request (or a command line) with a value that is not allowed. The message names the value and the allowed
    range.

    `violations` lists every invalid value, if the service found them. It is empty for a command line.
    """

    def __init__(self, message: str, violations: Sequence[Violation] = ()) -> None:
        super().__init__(message)
        self.violations = tuple(violations)


class TooLargeError(InvalidRequestError):
    """A request beyond a limit of the server, or of its caller; the message names the limit."""


class LevelNotFoundError(HmcError):
    """The requested level is not in the bundle. The message lists the levels that are."""


class ModelNotFoundError(LevelNotFoundError):
    """The server has no such model, or no model of these languages. The message lists its models."""


class RetryableError(HmcError):
    """Something that passes; see `HmcError.retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class OverloadedError(RetryableError):
    """The server has no room now; try again later or lower the load."""


class MemoryInUseError(OverloadedError):
    """Levels in use leave no memory for another one; try again later."""


class RateLimitedError(OverloadedError):
    """The caller sends more than it may. `retry_after_s`: seconds until the same call would pass."""


class DeviceUnavailableError(HmcError):
    """The requested device is not available. Never answered by a silent fallback."""


class FailedPreconditionError(HmcError):
    """The request makes sense, but not in the present state. The message says what to change first."""


class LevelNotLoadedError(FailedPreconditionError):
    """The level is in the bundle but does not serve. `level` is its name."""

    def __init__(self, level: str, message: str) -> None:
        self.level = level
        super().__init__(message)


class PortInUseError(HmcError):
    """Another process listens on the port; the message names it and says what to do."""


class UnavailableError(RetryableError):
    """The service cannot be reached, is starting or is draining; try again, or elsewhere."""


class UnauthenticatedError(HmcError):
    """The service requires a token, and got no token or a wrong one."""


class PermissionDeniedError(HmcError):
    """The caller is known, but may not do this. The message says which right is needed."""


class DeadlineExceededError(RetryableError):
    """The service did not answer within the time that the caller gave it, or saw at once that it could not."""


class InternalServiceError(HmcError):
    """The service failed in a way it should not: a bug there, to be found in its log."""


def named_error(name: str, message: str) -> HmcError | None:
    """The error of a class of this module, as another process has named it. None: there is no such class. A class that
    is made of more than a message gives an HmcError."""
    kind = globals().get(name)
    if not (isinstance(kind, type) and issubclass(kind, HmcError)):
        return None
    try:
        return kind(message)
    except TypeError:
        return HmcError(message)


def ending(status: int) -> str:
    """How a process ended, as the end of a sentence about it. status: as `subprocess` has it, so the status of a signal
    is negative."""
    if status >= 0:
        return f"ended with exit status {status}"
    names = {number.value: number.name for number in signal.Signals}
    often = ", often because memory ran out" if -status == signal.SIGKILL else ""
    return f"was killed by {names.get(-status, f'signal {-status}')}{often}"


def field_problems(error: ValidationError) -> list[str]:
    """A line for each field that Pydantic refuses: its path, and what is wrong with it."""
    lines = (f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors(include_input=False))
    return [line.removeprefix(": ") for line in lines]  # no path: it is about the whole


PLAIN = {
    "int_parsing": "choose a whole number",
    "int_type": "choose a whole number",
    "int_from_float": "choose a whole number",
    "float_parsing": "choose a number",
    "float_type": "choose a number",
    "finite_number": "choose a number that is not infinite",
    "bool_parsing": "choose true or false",
    "bool_type": "choose true or false",
    "string_type": "choose a text",
    "literal_error": "choose {expected}",
    "value_error": "{error}",
    "greater_than": "choose more than {gt:.10g}",
    "greater_than_equal": "choose {ge:.10g} or more",
    "less_than": "choose less than {lt:.10g}",
    "less_than_equal": "choose {le:.10g} or less",
}
"""Type of a problem that Pydantic finds → what to do about it."""


def plain_problem(problem: ErrorDetails) -> str:
    """What to do about a value that Pydantic refuses, in plain words."""
    advice = PLAIN.get(problem["type"])
    return advice.format(**problem.get("ctx", {})) if advice else problem["msg"]


def renamed(message: str, names: Mapping[str, str]) -> str:
    """A message about fields, with the names that its reader knows: `beam_size 0: …` becomes `--beam 0: …`.

    names: field → its other name. A field of one word, such as `port`, is replaced only where it begins the message and
    its value follows. Elsewhere it is an ordinary word.
    """
    if not names:
        return message
    fields = "|".join(sorted(map(re.escape, names), key=len, reverse=True))

    def other(match: re.Match[str]) -> str:
        field = match["field"]
        follows = message[match.end() :]
        begins = match.start() == 0 and re.match(r"\[\d+\]| \S+:|:| has ", follows)
        return names[field] if "_" in field or "." in field or begins else match[0]

    return re.sub(rf"(?<![\w./=-])(?:options\.|level\.)?(?P<field>{fields})(?![\w/=-]|\.\w)", other, message)

"""The errors that all rooms raise. They have one base class, so that the CLI and the service map them in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class HmcError(Exception):
    """Something a user can act on. The message says what is wrong and what to do."""

    retry_after_s: float | None = None
    """Seconds after which the same request may succeed. Negative: it is useless to send it again. None: unknown."""
    request_id: str | None = None
    """The name of the call that failed, in the log of the service. None: it was no call."""


class InvalidArtifactError(HmcError):
    """A checkpoint or bundle that cannot be used. `problems` lists everything found, not only the first."""

    def __init__(self, what: str, problems: list[str], fix: str) -> None:
        self.what, self.problems, self.fix = what, problems, fix
        listed = "\n".join(f"  - {problem}" for problem in problems)
        super().__init__(f"{what} cannot be used:\n{listed}\n{fix}")


@dataclass(frozen=True)
class Violation:
    """A value of a request that is at fault."""

    field: str
    """The path of the field, such as `options.beam_size` or `texts[3]`."""
    description: str
    """What is wrong with it and what to do about it."""


class InvalidRequestError(HmcError):
    """A request (or command line) whose values make no sense; the message names the value and the allowed range.

    `violations` lists every value at fault, if the service found them; it is empty for a command line.
    """

    def __init__(self, message: str, violations: Sequence[Violation] = ()) -> None:
        super().__init__(message)
        self.violations = tuple(violations)


class TooLargeError(InvalidRequestError):
    """A request beyond a limit of the server, or of its caller; the message names the limit."""


class LevelNotFoundError(HmcError):
    """The requested pruning level is not in the bundle; the message lists those that are."""


class ModelNotFoundError(LevelNotFoundError):
    """The server has no such model, or none of these languages; the message lists those that it has."""


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
    """The device asked for is not there. Never answered by a silent fallback."""


class FailedPreconditionError(HmcError):
    """What was asked makes sense, but not in the present state; the message says what to change first."""


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
    """The service wants a token, and got none or a wrong one."""


class PermissionDeniedError(HmcError):
    """The service knows the caller, who may not do this; the message says what would be needed."""


class DeadlineExceededError(RetryableError):
    """The service did not answer within the time that the caller gave it, or saw at once that it could not."""


class InternalServiceError(HmcError):
    """The service failed in a way it should not: a bug there, to be found in its log."""


def field_problems(error: ValidationError) -> list[str]:
    """A line for each field that Pydantic refuses: its path, and what is wrong with it."""
    lines = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_input=False))
    return [line.removeprefix(": ") for line in lines]  # no path: it is about the whole

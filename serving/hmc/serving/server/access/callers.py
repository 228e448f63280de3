"""The caller of the present call, for handlers, for the scheduler's fairness and for the log."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, get_args

from hmc.artifact.errors import TooLargeError

Scope = Literal["translate", "admin", "metrics"]
SCOPES: tuple[Scope, ...] = get_args(Scope)


@dataclass(frozen=True)
class Caller:
    """Whom the credentials of a call stand for."""

    name: str
    """The token's name in the tokens file, or the name in the client certificate; empty if the caller has neither."""
    scopes: frozenset[Scope] = frozenset(SCOPES)
    """What the caller may do."""
    weight: float = 1.0
    """The caller's share of a busy server, relative to other callers."""
    max_characters: int | None = None
    """Most characters in all texts of one call, or in one text of a stream. None: no limit of its own."""

    def check_size(self, characters: int) -> None:
        """Raises TooLargeError if a call with so many characters is too large for this caller."""
        if self.max_characters is not None and characters > self.max_characters:
            raise TooLargeError(
                f"{characters} characters in one call, but {self.name!r} may send at most {self.max_characters}: send "
                "fewer or shorter texts"
            )


ANYONE = Caller("")
caller: ContextVar[Caller] = ContextVar("caller", default=ANYONE)
"""The caller of the present call, set before the handler of the call runs. Tasks of the handler inherit it."""

"""The call that runs: its name, who makes it, when it must have ended, and what is known of it so far."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from hmc.artifact.errors import TooLargeError
from hmc.engine.requests.caller import ANYONE, Caller
from hmc.serving.requests.results import Answer

Scope = Literal["translate", "admin", "metrics"]
SCOPES: tuple[Scope, ...] = get_args(Scope)


@dataclass(frozen=True)
class Principal:
    """The owner of the credentials of a call."""

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


NOBODY = Principal("")


@dataclass(eq=False)
class PresentCall:
    """A call of the service while it runs. Outside of calls: nobody's, and without a deadline."""

    method: str = ""
    """Its full name, such as `/hmc.v1.TranslationService/Translate`."""
    request_id: str = ""
    """The client's `x-request-id`, or a new one."""
    remaining: Callable[[], float | None] | None = None
    """Returns the seconds until its deadline; None if it has none."""
    principal: Principal = NOBODY
    caller: Caller = ANYONE
    """Whose turn its sentences wait for in a queue."""
    charged: bool = False
    """Whether it was counted against the rate of its caller already."""
    began: float = field(default_factory=time.perf_counter)
    """Seconds, on a clock without a meaning of its own."""
    known: dict[str, str | int | float] = field(default_factory=dict)
    """What its requests have told so far: model, level, texts, and times in milliseconds."""
    span: Any = None
    """Its span, if calls are traced."""
    counted: weakref.ref[BaseException] | None = None
    """The last error of the call that was counted. An error passes two places that count."""

    def seconds_left(self) -> float | None:
        """Seconds until its deadline; None if it has none."""
        return None if self.remaining is None else self.remaining()

    def note(self, model: str, level: str, answer: Answer | None, first_s: float | None) -> None:
        """Adds facts about a request of this call. A stream has many requests: the longest times and the last level
        count."""
        known = self.known
        if level:
            known["model"] = model
            known["served_level"] = level
        if first_s is not None:
            known["first_token_ms"] = round(1000.0 * first_s, 3)
        if answer is not None:
            known["text_count"] = int(known.get("text_count", 0)) + len(answer)
            for name, value in (("queue_ms", answer.queue_ms), ("compute_ms", answer.compute_ms)):
                known[name] = max(float(known.get(name, 0.0)), round(value, 3))


_present: ContextVar[PresentCall | None] = ContextVar("hmc_call", default=None)


def enter(call: PresentCall) -> None:
    """Makes a call the present one of this task, and of the tasks that it starts."""
    _present.set(call)


def present_call() -> PresentCall:
    """The present call."""
    return _present.get() or PresentCall()


def caller_at(peer: str) -> Caller:
    """The caller at a network address as gRPC writes it, such as `ipv4:10.0.0.7:53412`: its host, without the port."""
    return Caller(peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer)

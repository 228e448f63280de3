"""Decides from a call's credentials who calls, whether the caller may, and how soon: how many texts a caller may send
in a time. Knows neither gRPC nor HTTP."""

from __future__ import annotations

import asyncio
import hmac
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hmc.artifact.errors import PermissionDeniedError, RateLimitedError, UnauthenticatedError
from hmc.serving.requests.call import NOBODY, Principal, Scope
from hmc.serving.server.access.certificates import Watched, ignore
from hmc.serving.server.access.tokens import TokenEntry, TokensFile, digest, read_tokens

CHARACTERS_PER_UNIT = 1000
"""A text counts once for every so many characters that it has begun, so that a long text is not as cheap as a word."""


def units(lengths: list[int]) -> int:
    """What texts of these lengths (characters) count for together. An empty text counts once, too."""
    return sum(max(1, math.ceil(length / CHARACTERS_PER_UNIT)) for length in lengths)


class Filling(NamedTuple):
    """What is left of an allowance at some time."""

    level: float
    at: float
    """Seconds, by the allowance's clock."""


class Allowance:
    """Fills up by `per_second` texts a second, up to `burst` texts. Lives on one event loop.

    A call of more texts than `burst` is let through when the allowance is full, and leaves a debt that later calls wait
    for. So every call can pass at some time, and the rate holds over time.
    """

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_second = per_second
        self.burst = burst
        self._clock = clock
        self._filling = Filling(float(burst), clock())

    def take(self, amount: int, *, only_look: bool = False) -> float:
        """Takes `amount` and returns 0, or takes nothing and returns the seconds until it can be taken. With
        `only_look` it takes nothing in either case."""
        now = self._clock()
        (level, at) = self._filling
        level = min(self.burst, level + (now - at) * self.per_second)
        missing = min(amount, self.burst) - level
        enough = missing <= 1e-9  # rounding of the level must not cost a wait
        self._filling = Filling(level - amount if enough and not only_look else level, now)
        return 0.0 if enough else missing / self.per_second


SINGLE = "--token"
"""The name of callers with the single token. No entry of a tokens file can have it."""


@dataclass(frozen=True)
class Credentials:
    """What a caller shows."""

    authorization: str | None = None
    """The metadata (in HTTP: the header) `authorization`."""
    certificate_names: tuple[str, ...] = ()
    """Names in the client certificate, which TLS has verified: its SPIFFE ID and its common name."""


class AccessGate:
    """Knows the tokens and what is left of each caller's rate. Lives on one event loop, but for `refresh`."""

    def __init__(
        self,
        token: str | None = None,
        tokens: Path | None = None,
        allowances: Callable[[str, float, int], Allowance] = lambda _name, rate, burst: Allowance(rate, burst),
        rejected: Callable[[], object] = ignore,
    ) -> None:
        """token: opens everything. tokens: a tokens file. With neither, every caller may do everything. allowances:
        makes the allowance of a caller, from the name, the texts a second and those at once. rejected: see `Watched`.

        Raises InvalidRequestError if the file cannot be used.
        """
        self._single = None if token is None else digest(token)
        self._file = (
            None if tokens is None else Watched("the tokens file", [tokens], lambda: read_tokens(tokens), rejected)
        )
        self._allowances: dict[str, Allowance] = {}
        self._new_allowance = allowances
        self.version = 0
        """Changes when the tokens do: a call that goes on for long is then admitted again."""

    @property
    def is_open(self) -> bool:
        """Whether callers need no credentials."""
        return self._single is None and self._file is None

    @property
    def guards_metrics(self) -> bool:
        """Whether reading metrics needs a token with the scope for it. The single token does not guard them."""
        return self._file is not None

    def refresh(self) -> None:
        """Reads the tokens file again if it has changed. May be called from any thread."""
        if self._file is not None and self._file.refresh():
            self.version += 1

    def admit(self, shown: Credentials, scope: Scope | None) -> Principal:
        """The caller with these credentials. scope: what the call needs; None: only a caller who is known.

        Raises UnauthenticatedError if the credentials are missing or unknown, and PermissionDeniedError if the caller
        lacks the scope.
        """
        principal = self._who(shown)
        if scope is not None and scope not in principal.scopes:
            scopes = ", ".join(sorted(principal.scopes))
            raise PermissionDeniedError(
                f"{principal.name!r} may not do this: it needs the scope {scope}, and has {scopes}"
            )
        return principal

    def _who(self, shown: Credentials) -> Principal:
        if self.is_open:
            return Principal(shown.certificate_names[0]) if shown.certificate_names else NOBODY
        if shown.authorization is not None:
            kind, _, sent = shown.authorization.partition(" ")
            known = self._owner(digest(sent)) if kind.lower() == "bearer" else None
            if known is None:
                raise UnauthenticatedError("the token in `authorization` is not this server's")
            return known
        for name, entry in self._entries().items():
            if entry.certificate is not None and entry.certificate in shown.certificate_names:
                return entry.caller(name)
        raise UnauthenticatedError("this server requires a token: send `authorization: Bearer TOKEN` as metadata")

    def _owner(self, sent: str) -> Principal | None:
        """Whose token has this hash. Compares with all of them, each in constant time."""
        owner = None
        for name, entry in self._entries().items():
            if entry.sha256 is not None and hmac.compare_digest(entry.sha256, sent):
                owner = entry.caller(name)
        if self._single is not None and hmac.compare_digest(self._single, sent):
            owner = Principal(SINGLE)
        return owner

    def _entries(self) -> dict[str, TokenEntry]:
        content: TokensFile | None = None if self._file is None else self._file.value
        return {} if content is None else content.tokens

    @property
    def has_rates(self) -> bool:
        """Whether the rate of a caller may be limited."""
        return self._file is not None

    def charge(self, caller: Principal, units: int, *, only_look: bool = False) -> None:
        """Counts texts of a call against the caller's rate. units: see `units`.

        Raises RateLimitedError if the rate is used up. Nothing is counted then, nor with `only_look`.
        """
        allowance = self._allowance(caller)
        wait = 0.0 if allowance is None else allowance.take(units, only_look=only_look)
        if allowance is not None and wait > 0:
            raise RateLimitedError(
                f"{caller.name!r} may send {allowance.per_second:g} texts a second, {allowance.burst} at once, and has "
                f"used them up: try again in {math.ceil(wait * 1000)} ms, or ask the operator for a higher rate",
                wait,
            )

    async def pace(self, caller: Principal, units: int) -> None:
        """As `charge`, but waits until the rate permits it: the texts of a stream are held up and not refused."""
        while (allowance := self._allowance(caller)) is not None and (wait := allowance.take(units)) > 0:
            await asyncio.sleep(wait)

    def _allowance(self, caller: Principal) -> Allowance | None:
        entry = self._entries().get(caller.name)
        if entry is None or entry.texts_per_second is None or self.is_open:
            return None
        rate = entry.texts_per_second
        burst = entry.burst or math.ceil(entry.texts_per_second)
        held = self._allowances.get(caller.name)
        if held is None or (held.per_second, held.burst) != (rate, burst):
            held = self._allowances[caller.name] = self._new_allowance(caller.name, rate, burst)
        return held

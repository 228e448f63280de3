"""The controller of `auto`: one level for all requests that choose `auto`, the best that keeps the objective.

The objective: the 95th percentile of queue + compute is at most `AutoPolicy.target_ms`, and fewer than
`AutoPolicy.max_pending` texts are pending. Arithmetic on what the levels report, and on a clock that is given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hmc.artifact.bundle.manifest import Level
from hmc.artifact.bundle.order import ladder, order
from hmc.artifact.errors import InvalidRequestError
from hmc.serving.levels.choosing import LevelCandidate
from hmc.serving.levels.latency import ENOUGH_REQUESTS

RECENT_S = 2.0
"""Latencies of the last so many seconds count."""
BURST_S = 0.5
"""Seconds over which the most that a level can do is measured. A level that is left ends what it has at full speed."""
LOOK_S = 0.05
"""Seconds between two looks at latencies. What waits is looked at for every request."""
SETTLE_S = 0.25
"""Seconds after a switch in which latencies cause no other: they still speak of the time before it."""
FIRST_HOLD_S = 5.0
LONGEST_HOLD_S = 60.0
"""Seconds for which all must be well before a better level is tried. They double when the level that was tried is left
again within the time for which it was waited, up to the second number; else they go back to the first."""
WELL = 0.7
"""All is well if latency and pending texts are below this part of what is allowed."""
SPARE = 0.85
"""A better level is tried if the texts of a second are at most this part of the most that it was seen to do. After
`LONGEST_HOLD_S` it is tried all the same, because texts may be shorter now."""


@dataclass(frozen=True)
class AutoPolicy:
    """The objective of `auto`. Raises InvalidRequestError if a value is out of range."""

    max_pending: int = 64
    """`auto` leaves a level with this many texts queued or running. An interactive call counts interactive texts only,
    because it goes before all others."""
    target_ms: float | None = None
    """`auto` leaves a level whose 95th percentile of queue + compute is above this many milliseconds, or will be with
    the texts that wait. A call of many sentences counts as what one of them alone would take. For interactive calls
    only: streams wait by design. None: latency is not considered."""

    def __post_init__(self) -> None:
        if self.max_pending < 1:
            raise InvalidRequestError(f"auto: {self.max_pending} texts pending: choose 1 or more")
        if self.target_ms is not None and not self.target_ms > 0:
            raise InvalidRequestError(f"auto: a target of {self.target_ms:g} ms: choose more than 0")


@dataclass
class _Past:
    """What the controller remembers of a level."""

    best: float = 0.0
    """The most texts a second that it was seen to do. It can do at least these."""
    seen: float = -math.inf
    """When it did them."""
    left: float = -math.inf
    """When it was left because of overload."""
    hold_s: float = FIRST_HOLD_S
    entered: float = -math.inf


class AutoController:
    """Chooses the level of `auto` for the requests of one priority at one bundle. Not thread-safe.

    It uses only levels that no other level beats (`hmc.artifact.bundle.order`), from the best to the fastest. It steps
    down at once, and one level at a time, when the present level misses the objective. It steps up when all was well
    for a while, the better level is not busy, and fewer texts come in a second than the better level was seen to
    translate. A level that turns out too slow again is tried less and less often.
    """

    def __init__(self, policy: AutoPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds; it must never go back, and be that of the latencies."""
        self._policy = policy
        self._clock = clock
        self._at: Level | None = None
        self._past: dict[str, _Past] = {}
        self._ladders: dict[frozenset[str], list[str]] = {}
        """Names of candidates → the names of those to choose among, from the best to the fastest."""
        self._looked = self._switched = -math.inf
        self._well_since: float | None = None
        self.switches = 0
        """Times that another level was chosen."""

    def choose(self, candidates: Sequence[LevelCandidate]) -> Level:
        """The level for a request that comes now. candidates: at least one. Failed candidates serve only if all have
        failed."""
        now = self._clock()
        ranked = self._ranked([c for c in candidates if not c.failed] or candidates)
        at = next((i for i, c in enumerate(ranked) if self._at and c.level.name == self._at.name), None)
        if at is None:
            at = self._replace_missing(ranked, now)
        crowded = self._is_crowded(ranked[at])
        if (crowded and at + 1 < len(ranked)) or now - self._looked >= LOOK_S:
            self._looked = now
            self._note_speeds(ranked, now)
            at = self._look(ranked, at, now, crowded=crowded)
        return ranked[at].level

    def _ranked(self, candidates: Sequence[LevelCandidate]) -> list[LevelCandidate]:
        """Those that no other candidate beats, from the best to the fastest."""
        by_name = {c.level.name: c for c in candidates}
        names = frozenset(by_name)
        if names not in self._ladders:
            self._ladders[names] = [step.name for step in ladder([c.level for c in candidates])]
        return [by_name[name] for name in self._ladders[names]]

    def _is_crowded(self, level: LevelCandidate) -> bool:
        """Whether a text that comes now would miss the objective, by what waits there already."""
        late = self._policy.target_ms is not None and 1000.0 * (level.expected_s or 0.0) > self._policy.target_ms
        return late or level.pending >= self._policy.max_pending

    def _replace_missing(self, ranked: Sequence[LevelCandidate], now: float) -> int:
        """The level of before failed, was unloaded, or is beaten by one that is there now: the next below it takes its
        place, or the last. At first, the best one."""
        place = 0
        if self._at is not None:
            standings = {x.name: x.ms for x in order([self._at, *(c.level for c in ranked)])}
            slower = sum(standings[c.level.name] > standings[self._at.name] for c in ranked)
            place = min(slower, len(ranked) - 1)
        self._enter(ranked[place], now)
        return place

    def _note_speeds(self, levels: Sequence[LevelCandidate], now: float) -> None:
        for level in levels:
            past = self._past_of(level)
            rate = _per_second(level, BURST_S)
            if rate >= past.best or now - past.seen >= LONGEST_HOLD_S:
                past.best = rate
                past.seen = now

    def _look(self, ranked: Sequence[LevelCandidate], at: int, now: float, *, crowded: bool) -> int:
        """Steps down or up, or stays. Returns the index of the level that serves from now on."""
        here = ranked[at]
        latency = self._latency_ms(ranked[at])
        target = self._policy.target_ms or math.inf
        if crowded or (latency > target and now - self._switched >= SETTLE_S):
            self._well_since = None
            if at + 1 < len(ranked):
                self._leave(here, now)
                self._enter(ranked[at + 1], now)
                return at + 1
            return at
        well = latency <= WELL * target and here.pending <= WELL * self._policy.max_pending
        if not well or at == 0 or not self._could_take(here, ranked[at - 1], now):
            self._well_since = None
            return at
        self._well_since = now if self._well_since is None else self._well_since
        if now - self._well_since < self._past_of(ranked[at - 1]).hold_s:
            return at
        self._enter(ranked[at - 1], now)
        return at - 1

    def _could_take(self, here: LevelCandidate, better: LevelCandidate, now: float) -> bool:
        """Whether the better level could do what comes now, as far as is known."""
        target = self._policy.target_ms or math.inf
        if self._latency_ms(better) > WELL * target or better.pending > WELL * self._policy.max_pending:
            return False
        past = self._past_of(better)
        if now - past.left >= LONGEST_HOLD_S:
            return True
        return _per_second(here, RECENT_S) + _per_second(better, RECENT_S) <= SPARE * past.best

    def _leave(self, level: LevelCandidate, now: float) -> None:
        """The level is overloaded. It is held off longer if it was tried in vain."""
        past = self._past_of(level)
        past.left = now
        in_vain = now - past.entered <= past.hold_s
        past.hold_s = min(2 * past.hold_s, LONGEST_HOLD_S) if in_vain else FIRST_HOLD_S

    def _enter(self, level: LevelCandidate, now: float) -> None:
        if self._at is not None:
            self.switches += 1
            self._past_of(level).entered = now
        self._at = level.level
        self._switched = now
        self._well_since = None

    def _past_of(self, level: LevelCandidate) -> _Past:
        return self._past.setdefault(level.level.name, _Past())

    def _latency_ms(self, level: LevelCandidate) -> float:
        """The 95th percentile of its latest calls, as if each had a single sentence, or what a new text will take,
        whichever is more; 0 if unknown."""
        if self._policy.target_ms is None:
            return 0.0
        recent = level.calls.summary(within_s=RECENT_S) if level.calls else None
        measured = recent.p95_ms if recent and recent.requests >= ENOUGH_REQUESTS else 0.0
        return max(measured, 1000.0 * (level.expected_s or 0.0))


def _per_second(level: LevelCandidate, seconds: float) -> float:
    """Texts that the level answered in a second, in the last so many seconds."""
    return level.recent.count(seconds) / seconds if level.recent else 0.0

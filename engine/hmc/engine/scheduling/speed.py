"""How fast a level is, as measured, and what follows from it: how long a sentence will take, and when the queue has
room again. Arithmetic on observations; the caller gives the time."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from hmc.artifact.errors import DeadlineExceededError

MEMORY_S = 5.0
"""Seconds of waiting sentences after which a measurement of a lane counts a third."""
MEMORY_SENTENCES = 64.0
"""Sentences after which a measurement of decoding counts a third."""
KEPT_S = 30.0
"""Seconds after which a measurement says nothing any more, also beside a new one. So a level that refuses what it
believes it cannot do in time tries again, and one that was left in a rush is not judged by that rush when it serves
again."""
ENOUGH_S = 0.2
ENOUGH_SENTENCES = 4.0
"""What a measurement needs before it is used."""
FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0
"""When to send a refused request again: if nothing is measured yet, and at most."""
MAX_LIMIT = 1 << 30
"""More tokens than any translation has."""
USUAL_SHARE = 0.5
"""The share of the usual time of decoding that hardly any sentence stays below. A request is refused only if it would
be late even so."""


class DrainRate:
    """Sentences that start in a second while others wait behind them."""

    def __init__(self) -> None:
        self._seconds = self._sentences = 0.0
        self._since: float | None = None
        """When the lane was last looked at, if sentences stayed in it then."""
        self._at = -math.inf

    def looked(self, now: float, taken: int, remaining: int, *, idle: bool) -> None:
        """A worker took sentences from the lane, or none, and left some. idle: the worker had nothing to do before, so
        what it takes now says nothing about its speed."""
        if self._since is not None and not idle:
            if now - self._at > KEPT_S:
                self._seconds = self._sentences = 0.0
            seconds = max(0.0, now - self._since)
            fade = math.exp(-seconds / MEMORY_S)
            self._seconds = self._seconds * fade + seconds
            self._sentences = self._sentences * fade + taken
            self._at = now
        self._since = now if remaining else None

    def restart(self) -> None:
        """The lane was empty, and a sentence joins it."""
        self._since = None

    def per_second(self, now: float) -> float | None:
        """Sentences a second; None if too little was measured lately."""
        if now - self._at > KEPT_S or self._seconds < ENOUGH_S or self._sentences < ENOUGH_SENTENCES:
            return None
        return self._sentences / self._seconds


class Pace:
    """How long sentences take once they have started. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sentences = self._seconds = self._source = self._target = 0.0
        self._at = -math.inf

    def ended(self, now: float, sentences: Iterable[tuple[int, int, float]]) -> None:
        """Sentences have ended: source tokens, target tokens and seconds of each."""
        fade = math.exp(-1 / MEMORY_SENTENCES)
        with self._lock:
            if now - self._at > KEPT_S:
                self._sentences = self._seconds = self._source = self._target = 0.0
            for source, target, seconds in sentences:
                self._sentences = self._sentences * fade + 1
                self._source = self._source * fade + source
                self._target = self._target * fade + target
                self._seconds = self._seconds * fade + seconds
                self._at = now

    @property
    def usual_source(self) -> int:
        """Usual source tokens of a sentence; 0 if none has ended."""
        with self._lock:
            return round(self._source / self._sentences) if self._sentences else 0

    def seconds(self, now: float, source: int, limit: int) -> float | None:
        """Usual seconds for a sentence of so many source tokens, whose translation has at most `limit` tokens; None if
        too little was measured lately."""
        with self._lock:
            if now - self._at > KEPT_S or self._sentences < ENOUGH_SENTENCES:
                return None
            target = min(limit, source * self._target / self._source)
            return self._seconds * target / self._target


class LevelSpeed:
    """What is known of a level's speed: of interactive sentences and of all others, which run in different batches."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forgets all measurements."""
        self.rates = {interactive: DrainRate() for interactive in (True, False)}
        self.paces = {interactive: Pace() for interactive in (True, False)}

    def per_second(self, now: float) -> float:
        """Sentences that leave the queue in a second; 0 if that is unknown."""
        return sum(rate.per_second(now) or 0.0 for rate in self.rates.values())

    def forecast(self, now: float, ahead: int, source: int, limit: int, *, interactive: bool) -> Forecast | None:
        """For a sentence with so many sentences `ahead` in its lane; None if too little was measured. source, limit:
        see `Pace.seconds`."""
        compute = self.paces[interactive].seconds(now, source, limit)
        if compute is None:
            return None
        rate = self.rates[interactive].per_second(now)
        return Forecast(ahead / rate if rate else 0.0, compute)

    def usual_s(self, now: float, ahead: int, *, interactive: bool) -> float | None:
        """Seconds from arrival to end of a sentence of usual length with so many sentences ahead of it; None if too
        little was measured."""
        usual = self.paces[interactive].usual_source
        forecast = self.forecast(now, ahead, usual, MAX_LIMIT, interactive=interactive) if usual else None
        return forecast.wait_s + forecast.compute_s if forecast else None


@dataclass(frozen=True)
class Forecast:
    """What a new sentence will probably take, in seconds."""

    wait_s: float
    """Until its first computation."""
    compute_s: float
    """From then to its end."""

    def check(self, left_s: float) -> None:
        """Raises DeadlineExceededError if the sentence cannot end within the seconds that are left."""
        if self.wait_s + USUAL_SHARE * self.compute_s <= left_s:
            return
        raise DeadlineExceededError(
            f"refused at once, because the deadline cannot be met: {left_s:.3g} s are left, and this level needs about "
            f"{self.wait_s + self.compute_s:.3g} s now ({self.wait_s:.3g} s in the queue, {self.compute_s:.3g} s to "
            "translate); allow more time, send less, or choose a cheaper level",
            retry_after_s=-1.0,
        )


def retry_after_s(places: int, per_second: float) -> float:
    """Seconds after which the queue has so many more places. per_second: sentences that leave it; 0 if unknown."""
    return min(places / per_second, LONGEST_RETRY_S) if per_second > 0 else FIRST_RETRY_S

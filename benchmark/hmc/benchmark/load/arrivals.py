"""When calls are due: at random, evenly, or as a file says. Times are seconds from the start, rising."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from hmc.artifact.errors import InvalidRequestError

Arrivals = Callable[[float, float, int], list[float]]
"""(calls a second, seconds, seed) → the times at which calls are due, before `seconds`."""
Kind = Literal["poisson", "constant"]


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    """Calls of many independent callers: a Poisson process."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, size=int(2 * rate * seconds) + 20)
    return [at for at in np.cumsum(gaps).tolist() if at < seconds]


def constant(rate: float, seconds: float, seed: int) -> list[float]:  # noqa: ARG001 - an `Arrivals`
    """One call every 1 / rate seconds, the first at once."""
    return [number / rate for number in range(int(np.ceil(rate * seconds))) if number / rate < seconds]


ARRIVALS: dict[Kind, Arrivals] = {"poisson": poisson, "constant": constant}


def read_trace(path: Path) -> list[float]:
    """Times from a file, one a line: seconds, rising. The first call is due at once, whatever its time is.

    Raises InvalidRequestError naming the line at fault.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path}: cannot be read: {error}") from error
    found: list[float] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            at = float(line)
        except ValueError as error:
            raise InvalidRequestError(f"{path}: line {number} is {line!r}; write one time in seconds a line") from error
        if not np.isfinite(at) or (found and at < found[-1]):
            raise InvalidRequestError(f"{path}: line {number}: times must be finite and must not fall")
        found.append(at)
    if len(found) < 2:
        raise InvalidRequestError(f"{path}: has {len(found)} times; a trace needs 2 or more")
    if found[-1] == found[0]:
        raise InvalidRequestError(f"{path}: all calls are due at the same time, so there is no rate; spread them")
    return [at - found[0] for at in found]

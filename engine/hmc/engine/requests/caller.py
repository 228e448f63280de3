"""Who sends a request, and how urgent it is: what decides whose sentence is next in a queue."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from hmc.artifact.errors import InvalidRequestError


@dataclass(frozen=True)
class Caller:
    """A caller. All calls with the same name share one turn. Raises InvalidRequestError for a weight out of range."""

    name: str = ""
    weight: float = 1.0
    """Its part of a level while others wait too: a caller of weight 2 gets twice what one of weight 1 gets."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise InvalidRequestError(f"the weight {self.weight:g} of caller {self.name!r}: choose a number above 0")


ANYONE = Caller()
"""The caller of everything that names none."""


class Priority(Enum):
    """In which order sentences start.

    | priority      | used for           | starts                                        | queue is full at       |
    |---------------|--------------------|-----------------------------------------------|------------------------|
    | `INTERACTIVE` | calls of few texts | before all others                             | `queue_size` sentences |
    | `STANDARD`    | longer calls       | when no interactive sentence waits, and after | `queue_size` sentences |
    |               |                    | three interactive ones in a row               |                        |
    | `BULK`        | streams            | in one lane with `STANDARD`                   | half of `queue_size`   |

    Interactive sentences run in batches of their own, which get about half of the time while other batches run too.
    The order does not depend on `block`, with which a caller waits while the queue is full.
    """

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BULK = "bulk"

    @property
    def interactive(self) -> bool:
        """Whether the sentence starts before sentences of other priorities, and runs in a batch without them."""
        return self is Priority.INTERACTIVE

"""How urgent a sentence is, compared with the other sentences of its level."""

from __future__ import annotations

from enum import Enum


class Priority(Enum):
    """How long a sentence may wait for others.

    | priority      | used for           | starts                                        | queue is full at       |
    |---------------|--------------------|-----------------------------------------------|------------------------|
    | `INTERACTIVE` | calls of few texts | before all others                             | `queue_size` sentences |
    | `STANDARD`    | longer calls       | when no interactive sentence waits, and after | `queue_size` sentences |
    |               |                    | three interactive ones in a row               |                        |
    | `BULK`        | streams            | in one line with `STANDARD`                   | half of `queue_size`   |

    Interactive sentences run in batches of their own, which get about half of the time while other batches run too.
    The order does not depend on `block`, with which a caller waits while the queue is full.
    """

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BULK = "bulk"

    @property
    def interactive(self) -> bool:
        """Whether the sentence starts before those of other priorities and runs in a batch without them."""
        return self is Priority.INTERACTIVE

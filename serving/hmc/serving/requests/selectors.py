"""How a request chooses the level that serves it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from hmc.artifact.errors import InvalidRequestError
from hmc.serving.requests.checks import check_text, check_whole


@dataclass(frozen=True)
class Selector:
    """A choice of level. At most one field may be set; with none set, the default level serves the request.

    "Best" means the most open heads, then the most parameters, then the highest precision.
    Raises InvalidRequestError if a value is out of range, or if more than one field is set.
    """

    name: str | None = None
    """Chooses the level of this name."""
    max_heads: int | None = None
    """Chooses the level with the most open heads, but not more than this."""
    max_bleu_drop: float | None = None
    """Chooses the level with the fewest open heads that loses at most this many BLEU points."""
    latency_budget_ms: int | None = None
    """Chooses the best level whose 95th-percentile latency is at most this many milliseconds."""
    auto: bool = False
    """Chooses the best level that is not overloaded now."""

    def __post_init__(self) -> None:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        chosen = [name for name, value in values.items() if value is not None and value is not False]
        if len(chosen) > 1:
            raise InvalidRequestError(f"level selector: {' and '.join(chosen)} exclude each other; give one")
        if self.name is not None:
            check_text(self.name, "level")
        if self.max_heads is not None:
            check_whole("max_heads", self.max_heads, 0)
        if self.max_bleu_drop is not None and not (self.max_bleu_drop >= 0 and math.isfinite(self.max_bleu_drop)):
            raise InvalidRequestError(f"max_bleu_drop {self.max_bleu_drop}: choose 0 or more BLEU points")
        if self.latency_budget_ms is not None:
            check_whole("latency_budget_ms", self.latency_budget_ms, 1)

    @classmethod
    def of(cls, level: str | Selector | None) -> Selector:
        """Turns a level's name into a selector of that name, and None into the selector of the default level."""
        return level if isinstance(level, Selector) else cls(name=level)

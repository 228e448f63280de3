"""How a request chooses the level that serves it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from hmc.artifact.errors import InvalidRequestError
from hmc.engine.requests.checks import check_text, check_whole

OF_THE_MODEL = ("model", "source_language", "target_language")
"""Fields that choose the model, and not the level."""
MAX_NAME = 64
"""Most characters of a model's name, and of a language tag."""


@dataclass(frozen=True)
class Selector:
    """A choice of level. At most one of the first five fields may be set; with none of them set, the default level
    serves the request. The other fields choose the model, if a server has several.

    Levels are chosen by their order (`hmc.artifact.bundle.order`): "best" means the highest BLEU, and a level that
    another fitting one beats in BLEU and time is chosen by its name only.
    Raises InvalidRequestError if a value is out of range, or if more than one of the first five fields is set.
    """

    name: str | None = None
    """Chooses the level of this name."""
    max_heads: int | None = None
    """Chooses the best level of those with at most so many open heads."""
    max_bleu_drop: float | None = None
    """Chooses the fastest level that loses at most this many BLEU points, as measured."""
    latency_budget_ms: int | None = None
    """Chooses the best level that would answer within this many milliseconds now, at the 95th percentile."""
    auto: bool = False
    """Chooses the best level that is not overloaded now."""
    model: str | None = None
    """Chooses the model of this name."""
    source_language: str | None = None
    """Chooses a model that translates from this language: a BCP 47 tag such as `en`, or an ISO 639 code such as
    `eng`."""
    target_language: str | None = None
    """Chooses a model that translates into this language, and the target token of a model of several."""

    def __post_init__(self) -> None:
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in OF_THE_MODEL}
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
        for name in OF_THE_MODEL:
            if (value := getattr(self, name)) is not None:
                check_text(value, name)
                if not 0 < len(value) <= MAX_NAME:
                    raise InvalidRequestError(f"{name} has {len(value)} characters: give 1 to {MAX_NAME}, or none")

    @property
    def default_level(self) -> bool:
        """Whether the default level is chosen, of whichever model."""
        limits = self.name, self.max_heads, self.max_bleu_drop, self.latency_budget_ms
        return not self.auto and limits == (None, None, None, None)

    @property
    def chosen_by(self) -> str:
        """How the level is chosen: the name of the field that is set among the first five, or `default`."""
        chosen = (
            f.name for f in fields(self) if f.name not in OF_THE_MODEL and getattr(self, f.name) not in (None, False)
        )
        return next(chosen, "default")

    @classmethod
    def of(cls, level: str | Selector | None) -> Selector:
        """Turns a level's name into a selector of that name, and None into the selector of the default level."""
        return level if isinstance(level, Selector) else cls(name=level)

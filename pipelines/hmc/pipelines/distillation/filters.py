"""Which translations are no good to learn from: copies, loops, unfinished ones, and wrong lengths.

Translations are only left out of the training text. The files of translations keep all of them, so other filters can be
tried without translating again.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import Field

from hmc.artifact.settings import SettingsModel

Skipped = Literal["empty", "duplicate", "too_long"]
"""Why a source line is not translated."""
Suspicion = Literal["unfinished", "copy", "loop", "length_ratio"]
SUSPICIONS: tuple[Suspicion, ...] = get_args(Suspicion)
Reason = Literal["no_text", Suspicion]
"""Why a translation is dropped. Only suspicions can be left out."""
REASONS: tuple[Reason, ...] = get_args(Reason)
SLACK = 5
"""Tokens by which lengths may differ beyond their ratio: short sentences differ more."""
LONGEST_LOOP = 8
"""Longest sequence, in words, that is looked for as a loop."""
SPACED = 16
"""Characters per space above which a text is taken to be written without spaces; its characters are then its words."""


class Filters(SettingsModel):
    """Which translations are dropped. Raises InvalidRequestError if a value is out of range."""

    keep: tuple[Suspicion, ...] = ()
    """Reasons that do not drop a translation."""
    max_length_ratio: float = Field(default=2.5, ge=1)
    """Drop a pair whose longer side has more tokens than this times the shorter one, plus 5."""
    max_repeats: int = Field(default=2, ge=1)
    """Drop a translation in which a sequence of words follows itself more often than this, unless the source does the
    same: 2 is "ha ha"."""

    def to_json(self) -> dict[str, Any]:
        """Returns the settings as JSON values."""
        return self.model_dump() | {"keep": sorted(self.keep)}

    def reason_to_drop(
        self, source: str, target: str, *, source_tokens: int, target_tokens: int, unfinished: bool
    ) -> Reason | None:
        """Returns why a translation is dropped; None if it stays.

        source_tokens, target_tokens: lengths with the end of the sentence. unfinished: the search stopped at its limit.
        """
        found: dict[Reason, bool] = {
            "no_text": not target.strip() or "\n" in target,
            "unfinished": unfinished,
            "copy": source.casefold().split() == target.casefold().split(),
            "loop": (again := repeats(target)) > self.max_repeats and again > repeats(source),
            "length_ratio": self._lengths_differ(source_tokens, target_tokens),
        }
        return next((reason for reason in REASONS if found[reason] and reason not in self.keep), None)

    def _lengths_differ(self, *lengths: int) -> bool:
        return max(lengths) > self.max_length_ratio * min(lengths) + SLACK


def repeats(text: str) -> int:
    """Returns how often some sequence of 1 to LONGEST_LOOP words follows itself without a break: 1 if none does.

    Sequences without a letter do not count: dots and dashes are drawn as rows. A text without spaces is taken character
    by character, and its sequences have two characters or more.
    """
    words = text.casefold().split()
    shortest = 1
    if len(words) == 1 or len(text) > SPACED * len(words):
        words = list(text.casefold())
        shortest = 2
    most = 1
    for size in range(shortest, LONGEST_LOOP + 1):
        run = 0
        for position in range(size, len(words)):
            same = words[position] == words[position - size]
            run = run + 1 if same else 0
            if run >= most * size and any(c.isalpha() for w in words[position - size + 1 : position + 1] for c in w):
                most = run // size + 1
    return most

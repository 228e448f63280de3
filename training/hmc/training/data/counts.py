"""What became of the sentence pairs of a text: how many were read, and how many are left out for which reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hmc.artifact.errors import InvalidRequestError

MUCH = 0.05
"""Share of the target tokens above which their loss is a warning."""


@dataclass(frozen=True)
class Limit:
    """Length of the longest side of a sentence pair that is used for training."""

    tokens: int
    """With EOS."""
    setting: str
    """The setting or option that says so, as a user writes it; empty where the model has no more positions."""

    @classmethod
    def within(cls, max_length: int, positions: int, setting: str) -> Limit:
        """Returns the smaller one of a setting and the positions of a model."""
        return cls(max_length, setting) if max_length <= positions else cls(positions, "")

    def __str__(self) -> str:
        return f"{self.tokens} tokens ({self.setting or 'the positions of the model'})"


@dataclass
class PairCounts:
    """Counts of the sentence pairs of a text. With BPE-dropout, every segmentation of a pair is a pair."""

    pairs: int = 0
    """Pairs that were read."""
    empty: int = 0
    """Pairs with an empty side, which are left out."""
    too_long: int = 0
    """Pairs with a side longer than the limit, which are left out."""
    tokens: int = 0
    """Target tokens of all pairs. 0 if they were not tokenised."""
    lost_tokens: int = 0
    """Target tokens of the pairs that are too long."""
    more_columns: int = 0
    """Lines of TSV files with more than two columns, of which the first two are the pair."""
    columns: str = ""
    """The first one of these lines: its place, and what was read as the pair."""

    @property
    def kept(self) -> int:
        """Pairs that are not left out."""
        return self.pairs - self.empty - self.too_long

    def to_json(self) -> dict[str, Any]:
        """Returns the counts as JSON values."""
        return asdict(self)

    def check(self, corpora: Sequence[str], limit: Limit) -> None:
        """Raises InvalidRequestError when no pair is left."""
        if not self.kept:
            raise InvalidRequestError(
                f"training text {list(corpora)}: no sentence pair of 1 to {limit.tokens} tokens a side"
                f"{self._reasons(limit)}"
            )

    def summary(self, limit: Limit | None = None) -> str:
        """Returns how many pairs stay, and how many are left out for which reason. limit: of the length."""
        if self.kept == self.pairs:
            return f"{self.pairs:,} sentence pairs"
        return f"{self.kept:,} of {self.pairs:,} sentence pairs{self._reasons(limit)}"

    def _reasons(self, limit: Limit | None) -> str:
        reasons = [f"{self.empty:,} with an empty side"] if self.empty else []
        if self.too_long:
            reasons.append(f"{self.too_long:,} longer than {limit}")
        return f"; left out: {', '.join(reasons)}" if reasons else ""

    def column_warnings(self) -> list[str]:
        """Returns warnings about TSV files with more than two columns."""
        if not self.more_columns:
            return []
        return [
            f"{self.more_columns:,} lines have more than two columns, and only the first two are read: {self.columns}; "
            "if that is no pair, write the two columns to another file (cut -f)"
        ]

    def warnings(self, limit: Limit | None = None) -> list[str]:
        """Returns warnings: much of the text is left out, or a file has more than two columns."""
        warnings = self.column_warnings()
        if self.empty > MUCH * self.pairs:
            warnings.append(f"{self.empty / self.pairs:.0%} of the pairs have an empty side, and are left out")
        if limit and self.lost_tokens > MUCH * self.tokens:
            cure = f"raise {limit.setting}, or divide" if limit.setting else "divide"
            warnings.append(
                f"{self.lost_tokens / self.tokens:.0%} of the target tokens are left out, in pairs longer than "
                f"{limit}: {cure} long texts into sentences"
            )
        return warnings

"""Head budgets: how many heads stay open, of the whole model, of some kinds, or of each kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import BLIND, KINDS, AttentionKind, HeadLayout, HeadScores, rank_heads

SHORT_NAMES: dict[str, AttentionKind] = {"enc": "encoder_self", "dec": "decoder_self", "cross": "cross"}
"""Names of kinds in budgets, as in `enc=10,dec=20,cross=24`; the long names work too."""


@dataclass(frozen=True)
class HeadBudget:
    """`parts`: exactly `heads` open heads over `kinds`, for every pair (kinds, heads).

    No kind is in two parts. Kinds in no part keep all their heads. (Voita et al. 2019: all kinds with one λ in section
    6.3, the encoder alone in 6.2.)
    """

    parts: tuple[tuple[tuple[AttentionKind, ...], int], ...]

    def __str__(self) -> str:
        """As `parse_budgets` reads it."""
        [*rest, (kinds, heads)] = self.parts
        if not rest and kinds == KINDS:
            return str(heads)
        return ",".join(f"{_short(kinds)}={heads}" for kinds, heads in self.parts)

    @property
    def kinds(self) -> tuple[AttentionKind, ...]:
        """Kinds whose heads may be closed, in the order of `KINDS`."""
        return tuple(kind for kind in KINDS if any(kind in kinds for kinds, _ in self.parts))

    @property
    def name(self) -> str:
        """`h72` for a whole model, else the parts, such as `enc10-dec20-cross24`. It can be a folder's name."""
        [*rest, (kinds, heads)] = self.parts
        if not rest and kinds == KINDS:
            return f"h{heads}"
        return "-".join(f"{_short(kinds)}{heads}" for kinds, heads in self.parts)

    @property
    def heads(self) -> int:
        """Open heads over all parts."""
        return sum(heads for _, heads in self.parts)

    def available(self, layout: HeadLayout) -> int:
        """Open heads of `layout` that are of any kind in this budget."""
        return sum(len(row) for kind in self.kinds for row in layout[kind])

    def select(self, scores: HeadScores, layout: HeadLayout) -> HeadLayout:
        """Keeps the heads of highest score in each part, and all heads of kinds in no part.

        Raises InvalidRequestError if `layout` has too few heads.
        """
        if problems := self.problems(layout):
            raise InvalidRequestError(f"head budget {self}: {problems[0]}")
        ranked = rank_heads(scores, layout)
        kept = [head for head in ranked if head.kind not in self.kinds]
        for kinds, heads in self.parts:
            kept += [head for head in ranked if head.kind in kinds][:heads]
        return HeadLayout.from_heads(kept, len(layout.encoder_self), len(layout.decoder_self))

    def problems(self, layout: HeadLayout) -> list[str]:
        """Why `layout` cannot meet this budget; empty when it can."""
        problems = []
        for kinds, wanted in self.parts:
            open_heads = sum(len(row) for kind in kinds for row in layout[kind])
            least = self.least(kinds)
            if not 0 <= wanted <= open_heads:
                asked = f"{wanted} heads of {' and '.join(kinds)}"
                problems.append(
                    f"{asked} asked for, this model has {open_heads}; choose {min(least, open_heads)} to {open_heads}"
                )
            elif wanted < least:
                problems.append(BLIND)
        return problems

    @staticmethod
    def least(kinds: Sequence[AttentionKind]) -> int:
        """The fewest heads that a part over `kinds` may keep: without cross-attention no decoder sees its source."""
        return 1 if "cross" in kinds else 0

    def within(self, other: HeadBudget) -> bool:
        """True if both have the same parts, no part here has more heads than in `other`, and at least one has fewer."""
        if [kinds for kinds, _ in self.parts] != [kinds for kinds, _ in other.parts]:
            return False
        pairs = [(mine, theirs) for (_, mine), (_, theirs) in zip(self.parts, other.parts, strict=True)]
        return all(mine <= theirs for mine, theirs in pairs) and self != other


def parse_budgets(
    text: str, kinds: Sequence[AttentionKind] = KINDS, layout: Callable[[], HeadLayout] | None = None
) -> list[HeadBudget]:
    """Reads `72,36` (budgets over all of `kinds`), `enc=10,dec=20,cross=24` (one budget, by kind), or several with `;`
    between them.

    layout: returns the head layout that a share such as `25%` refers to. It is called at most once. None: shares are
    refused. Raises InvalidRequestError.
    """
    reader = _Reader(text, tuple(kind for kind in KINDS if kind in kinds), layout)
    return [budget for part in text.split(";") for budget in reader.part(part)]


def parse_kinds(text: str, option: str) -> tuple[AttentionKind, ...]:
    """Reads `all`, or kinds with commas between them, in long or short names.

    option: where the text was given, for the message of InvalidRequestError.
    """
    if text.strip() == "all":
        return KINDS
    named = {_kind(word.strip(), f"{option} {text!r}") for word in text.split(",")}
    return tuple(kind for kind in KINDS if kind in named)


class _Reader:
    """One text with budgets."""

    def __init__(self, text: str, scope: tuple[AttentionKind, ...], layout: Callable[[], HeadLayout] | None) -> None:
        self._text = text
        self._scope = scope
        self._ask = layout
        self._layout: HeadLayout | None = None

    def part(self, part: str) -> list[HeadBudget]:
        words = [word.strip() for word in part.split(",") if word.strip()]
        if "=" in part:
            return [self._by_kind(words)]
        return [HeadBudget(((self._scope, self._number(word, self._scope)),)) for word in words]

    def _by_kind(self, words: Sequence[str]) -> HeadBudget:
        heads_per_kind: dict[AttentionKind, int] = {}
        for word in words:
            name, _, number = word.partition("=")
            kind = _kind(name.strip(), f"head budget {self._text!r}")
            if kind in heads_per_kind:
                raise InvalidRequestError(
                    f"head budget {self._text!r}: {kind} is given twice; separate budgets with ';'"
                )
            if kind not in self._scope:
                scope = ", ".join(self._scope)
                raise InvalidRequestError(f"head budget {self._text!r}: {kind} is outside the scope {scope}")
            heads_per_kind[kind] = self._number(number.strip(), (kind,))
        return HeadBudget(tuple(((kind,), heads_per_kind[kind]) for kind in KINDS if kind in heads_per_kind))

    def _number(self, word: str, kinds: Sequence[AttentionKind]) -> int:
        try:
            if not (word.endswith("%") and self._ask):
                return int(word)
            share = float(word[:-1])
        except ValueError as error:
            example = "72,36 or 50%,25%" if self._ask else "72,36"
            raise InvalidRequestError(
                f"head budget {self._text!r}: {word!r} is no whole number{' and no share' if self._ask else ''}; write "
                f"{example} or enc=10,dec=20,cross=24"
            ) from error
        if not 0 <= share <= 100:  # NaN fails too
            raise InvalidRequestError(f"head budget {self._text!r}: {word} is no share; choose 0% to 100%")
        self._layout = self._layout or self._ask()
        return round(share / 100 * sum(len(row) for kind in kinds for row in self._layout[kind]))


def _short(kinds: Sequence[AttentionKind]) -> str:
    names = {kind: name for name, kind in SHORT_NAMES.items()}
    return "+".join(names[kind] for kind in kinds)


def _kind(name: str, where: str) -> AttentionKind:
    kind = SHORT_NAMES.get(name) or next((k for k in KINDS if k == name), None)
    if kind is None:
        raise InvalidRequestError(f"{where}: {name!r} is no kind of head; choose {', '.join(KINDS)} or enc, dec, cross")
    return kind

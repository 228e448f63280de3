"""Head budgets: how many heads stay open, over the whole model, some kinds of it, or each kind on its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.heads import KINDS, HeadLayout, HeadScores, Kind, rank_heads

SHORT_NAMES: dict[str, Kind] = {"enc": "encoder_self", "dec": "decoder_self", "cross": "cross"}
"""Names of kinds in budgets, as in `enc=10,dec=20,cross=24`; the long names work too."""


@dataclass(frozen=True)
class HeadBudget:
    """`parts`: exactly `heads` open heads over `kinds`, for every pair (kinds, heads).

    No kind is in two parts. Kinds in no part keep all their heads. (Voita et al. 2019: all kinds with one λ in section
    6.3, the encoder alone in 6.2.)
    """

    parts: tuple[tuple[tuple[Kind, ...], int], ...]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds whose heads may be closed, in the order of `KINDS`."""
        return tuple(kind for kind in KINDS if any(kind in kinds for kinds, _ in self.parts))

    @property
    def name(self) -> str:
        """`h72` for a whole model, else the parts, e.g. `enc10-dec20-cross24`; fit for a folder's name."""
        [*rest, (kinds, heads)] = self.parts
        if not rest and kinds == KINDS:
            return f"h{heads}"
        short = {kind: name for name, kind in SHORT_NAMES.items()}
        return "-".join("+".join(short[k] for k in kinds) + str(heads) for kinds, heads in self.parts)

    @property
    def heads(self) -> int:
        """Open heads over all parts."""
        return sum(heads for _, heads in self.parts)

    def available(self, layout: HeadLayout) -> int:
        """Heads that `layout` has of the kinds in all parts."""
        return sum(len(row) for kind in self.kinds for row in layout[kind])

    def select(self, scores: HeadScores, layout: HeadLayout) -> HeadLayout:
        """Keeps the heads of highest score in each part, and everything outside. Raises InvalidRequestError."""
        if problems := self.problems(layout):
            raise InvalidRequestError(f"head budget {self.name}: {problems[0]}")
        ranked = rank_heads(scores, layout)
        kept = [head for head in ranked if head.kind not in self.kinds]
        for kinds, heads in self.parts:
            kept += [head for head in ranked if head.kind in kinds][:heads]
        return HeadLayout.from_heads(kept, len(layout.encoder_self), len(layout.decoder_self))

    def problems(self, layout: HeadLayout) -> list[str]:
        """What this budget asks of `layout` that it has not; empty when it can be met."""
        problems = []
        for kinds, heads in self.parts:
            there = sum(len(row) for kind in kinds for row in layout[kind])
            if not 0 <= heads <= there:
                asked = f"{heads} heads of {' and '.join(kinds)}"
                problems.append(f"{asked} asked for, this model has {there}; choose 0 to {there}")
        return problems

    def within(self, other: HeadBudget) -> bool:
        """True when it has the same parts as `other`, none with more heads and one with fewer."""
        if [kinds for kinds, _ in self.parts] != [kinds for kinds, _ in other.parts]:
            return False
        pairs = [(mine, theirs) for (_, mine), (_, theirs) in zip(self.parts, other.parts, strict=True)]
        return all(mine <= theirs for mine, theirs in pairs) and self != other


def parse_budgets(text: str, kinds: Sequence[Kind] = KINDS) -> list[HeadBudget]:
    """Reads `72,36` (several budgets over `kinds` together) or `enc=10,dec=20,cross=24` (one budget a kind).

    Several budgets by kind are separated by `;`. Raises InvalidRequestError.
    """
    if "=" not in text:
        words = [part.strip() for part in text.split(",") if part.strip()]
        return [HeadBudget(((tuple(k for k in KINDS if k in kinds), _number(word, text)),)) for word in words]
    return [_by_kind(part, kinds, text) for part in text.split(";") if part.strip()]


def parse_kinds(text: str, option: str = "--scope") -> tuple[Kind, ...]:
    """Reads `all`, or kinds with commas between them, in long or short names. Raises InvalidRequestError."""
    if text.strip() == "all":
        return KINDS
    named = {_kind(word.strip(), f"{option} {text!r}") for word in text.split(",")}
    return tuple(kind for kind in KINDS if kind in named)


def _by_kind(part: str, scope: Sequence[Kind], text: str) -> HeadBudget:
    heads: dict[Kind, int] = {}
    for word in part.split(","):
        name, _, number = word.partition("=")
        kind = _kind(name.strip(), f"head budget {text!r}")
        if kind in heads:
            raise InvalidRequestError(f"head budget {text!r}: {kind} is given twice; separate budgets with ';'")
        if kind not in scope:
            raise InvalidRequestError(f"head budget {text!r}: {kind} is outside the scope {', '.join(scope)}")
        heads[kind] = _number(number, text)
    return HeadBudget(tuple(((kind,), heads[kind]) for kind in KINDS if kind in heads))


def _kind(name: str, where: str) -> Kind:
    kind = SHORT_NAMES.get(name) or next((k for k in KINDS if k == name), None)
    if kind is None:
        raise InvalidRequestError(f"{where}: {name!r} is no kind of head; choose {', '.join(KINDS)} or enc, dec, cross")
    return kind


def _number(word: str, text: str) -> int:
    try:
        return int(word)
    except ValueError as error:
        raise InvalidRequestError(
            f"head budget {text!r}: {word.strip()!r} is no whole number; write 72,36 or enc=10,dec=20,cross=24"
        ) from error

"""What HeadMask is asked to do, as a recipe writes it: `random:18`, `important:12.5%`, `random:6@encoder_self`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from hmc.artifact.budgets import parse_kinds
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.heads import KINDS, HeadLayout, Kind

Method = Literal["random", "important"]
_FORM = re.compile(r"(random|important):(\d+(?:\.\d+)?)(%?)(?:@(.+))?")


@dataclass(frozen=True)
class HeadMaskSpec:
    """Which heads to mask in every update (Sun et al. 2021, section 3)."""

    method: Method
    """`random`: algorithm 1; `important`: algorithm 2."""
    amount: float
    """Heads, or per cent of the heads in scope."""
    percent: bool
    kinds: tuple[Kind, ...] = KINDS
    """The scope: kinds whose heads may be masked."""

    @classmethod
    def parse(cls, text: str) -> HeadMaskSpec:
        """Reads METHOD:AMOUNT[%][@KIND[,KIND…]]. Raises InvalidRequestError."""
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise InvalidRequestError(
                f"headmask {text!r}: write METHOD:AMOUNT, e.g. random:18, important:12.5% or random:6@encoder_self"
            )
        method, amount, percent, scope = match.groups()
        if not percent and not float(amount).is_integer():
            raise InvalidRequestError(f"headmask {text!r}: {amount} is no whole number of heads; for a share write %")
        kinds = parse_kinds(scope, f"headmask {text!r}:") if scope else KINDS
        return cls(cast(Method, method), float(amount), bool(percent), kinds)

    def number(self, layout: HeadLayout) -> int:
        """N: heads to mask in each update of a model with this layout.

        A share is rounded to the nearest whole head. Raises InvalidRequestError unless one head or more is masked and
        one or more in scope stays open.
        """
        there = sum(len(row) for kind in self.kinds for row in layout[kind])
        if there < 2:
            raise InvalidRequestError(
                f"headmask: {', '.join(self.kinds)} have {there} open heads in this model, and one has to stay open: "
                "choose other kinds, or train without"
            )
        masked = int(self.amount * there / 100 + 0.5) if self.percent else int(self.amount)
        if not 1 <= masked < there:
            asked = f"{self.amount:g}{'%' if self.percent else ''}"
            raise InvalidRequestError(
                f"headmask {self.method}:{asked} masks {masked} of the {there} heads of {', '.join(self.kinds)}; "
                f"choose 1 to {there - 1} heads"
            )
        return masked

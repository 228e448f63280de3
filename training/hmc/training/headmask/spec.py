"""Settings of HeadMask as recipes write them: `random:18`, `important:12.5%`, `random:6@encoder_self`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.budgets import parse_kinds
from hmc.artifact.model.heads import KINDS, HeadLayout, Kind

Method = Literal["random", "important"]
_FORM = re.compile(r"(random|important):(\d+(?:\.\d+)?)(%?)(?:@(.+))?")


@dataclass(frozen=True)
class HeadMaskSpec:
    """Which heads to mask in every update (Sun et al. 2021, section 3)."""

    method: Method
    """`random`: algorithm 1; `important`: algorithm 2."""
    amount: float
    """Number of heads, or per cent of the heads in scope."""
    percent: bool
    """True when `amount` is per cent."""
    kinds: tuple[Kind, ...] = KINDS
    """Scope: the kinds whose heads may be masked."""

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
            raise InvalidRequestError(f"headmask {text!r}: {amount} is no whole number of heads; write % for a share")
        kinds = parse_kinds(scope, f"headmask {text!r}:") if scope else KINDS
        return cls(cast(Method, method), float(amount), bool(percent), kinds)

    def number(self, layout: HeadLayout) -> int:
        """Returns N, the number of heads to mask in each update of a model with this layout.

        A share is rounded to the nearest whole head. Raises InvalidRequestError unless at least one head is masked and
        at least one head in scope stays open.
        """
        heads = sum(len(row) for kind in self.kinds for row in layout[kind])
        if heads < 2:
            raise InvalidRequestError(
                f"headmask: {', '.join(self.kinds)} have {heads} open heads in this model, and one has to stay open: "
                "choose other kinds, or train without headmask"
            )
        masked = int(self.amount * heads / 100 + 0.5) if self.percent else int(self.amount)
        if not 1 <= masked < heads:
            amount = f"{self.amount:g}{'%' if self.percent else ''}"
            raise InvalidRequestError(
                f"headmask {self.method}:{amount} masks {masked} of the {heads} heads of {', '.join(self.kinds)}; "
                f"choose 1 to {heads - 1} heads"
            )
        return masked

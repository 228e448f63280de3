"""Settings of HeadMask as recipes write them: `random:18`, `important:12.5%`, `important:1/attention,signed`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from typing import Literal, cast

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.budgets import parse_kinds
from hmc.artifact.model.heads import KINDS, AttentionKind, HeadLayout
from hmc.artifact.model.importance import DEFAULT, WORDS, Importance

Method = Literal["random", "important"]
_FORM = re.compile(r"(random|important):(\d+(?:\.\d+)?)(%|/attention)?(?:@([^,]+))?((?:,[^,]*)*)")
_AFTER = re.compile(r"after=(\d+)")


@dataclass(frozen=True)
class HeadMaskSpec:
    """The heads to mask in every update (Sun et al. 2021, section 3)."""

    method: Method
    """`random`: algorithm 1; `important`: algorithm 2."""
    amount: float
    """Number of heads, or per cent of the heads in scope."""
    percent: bool
    """True when `amount` is per cent."""
    kinds: tuple[AttentionKind, ...] = KINDS
    """Scope: the kinds whose heads may be masked."""
    per_attention: bool = False
    """`/attention`: `amount` heads of every attention in scope, which keeps one head at least. The input of the paper's
    algorithms is one attention; its experiments mask 18 of 144 heads, which is one in each of 18 attentions."""
    importance: Importance = DEFAULT
    """What `important` ranks heads by: the words of `Importance`, such as `signed`, `layer` and `token`."""
    part: bool = False
    """`part`: each part of an accumulated batch, in every process, has a mask of its own. A head is then trained by one
    part while another masks it."""
    rescaled: bool = False
    """`rescaled`: the open heads of an attention are multiplied by its number of heads / its number of open ones, as
    DropHead does (Zhou et al. 2020, Scheduled DropHead)."""
    after: int = 0
    """`after=N`: the first N updates mask nothing."""

    @classmethod
    def parse(cls, text: str) -> HeadMaskSpec:
        """Reads METHOD:AMOUNT[%|/attention][@KIND[,KIND…]][,WORD…]. Raises InvalidRequestError."""
        where = f"headmask {text!r}:"
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise InvalidRequestError(
                f"{where} write METHOD:AMOUNT, e.g. random:18, important:12.5%, random:6@encoder_self or "
                "important:1/attention,signed"
            )
        method, amount, unit, scope, rest = match.groups()
        if unit != "%" and not float(amount).is_integer():
            raise InvalidRequestError(f"{where} {amount} is no whole number of heads; write % for a share")
        words = [word.strip() for word in rest.split(",")[1:]]
        after = [part for word in words if (part := _AFTER.fullmatch(word))]
        known = [word for word in words if word in (*WORDS, "part", "rescaled") or _AFTER.fullmatch(word)]
        kinds = [word for word in words if word not in known]
        if kinds and not scope:
            raise InvalidRequestError(
                f"{where} {kinds[0]!r} is unknown; choose among {', '.join(WORDS)}, part, rescaled and after=N, or "
                "name kinds with @"
            )
        named = [word for word in known if word in WORDS]
        if method == "random" and named:
            raise InvalidRequestError(f"{where} {named[0]} is for `important`, not for `random`")
        return cls(
            cast(Method, method),
            float(amount),
            unit == "%",
            parse_kinds(",".join([scope, *kinds]), where) if scope else KINDS,
            unit == "/attention",
            Importance.parse(named, where),
            "part" in known,
            "rescaled" in known,
            int(after[-1][1]) if after else 0,
        )

    def number(self, layout: HeadLayout) -> int:
        """Returns N, the number of heads to mask in each update of a model with this layout.

        A share is rounded to the nearest whole head. Raises InvalidRequestError unless at least one head is masked and
        at least one head in scope stays open.
        """
        widths = list(map(len, chain.from_iterable(layout[kind] for kind in self.kinds)))
        heads = sum(widths)
        if heads < 2:
            raise InvalidRequestError(
                f"headmask: {', '.join(self.kinds)} have {heads} open heads in this model, and one has to stay open: "
                "choose other kinds, or train without headmask"
            )
        if self.per_attention:
            if not 1 <= self.amount < max(widths):
                raise InvalidRequestError(
                    f"headmask {self.method}:{self.amount:g}/attention: the attentions of {', '.join(self.kinds)} have "
                    f"up to {max(widths)} open heads, of which one has to stay open; choose "
                    f"{f'1 to {max(widths) - 1}' if max(widths) > 1 else 'a number of all heads'}"
                )
            return sum(map(self.masked_of, widths))
        masked = int(self.amount * heads / 100 + 0.5) if self.percent else int(self.amount)
        if not 1 <= masked < heads:
            amount = f"{self.amount:g}{'%' if self.percent else ''}"
            raise InvalidRequestError(
                f"headmask {self.method}:{amount} masks {masked} of the {heads} heads of {', '.join(self.kinds)}; "
                f"choose 1 to {heads - 1} heads"
            )
        return masked

    def masked_of(self, heads: int) -> int:
        """Returns the number of heads to mask of an attention that has `heads`, with `/attention`."""
        return max(0, min(int(self.amount), heads - 1))

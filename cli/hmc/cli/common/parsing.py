"""Parsing of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from typer import BadParameter
from typer.core import TyperCommand, TyperOption

if TYPE_CHECKING:
    from typer._click.core import Context, Parameter  # the types of what is overridden; never imported


class CheckedCommand(TyperCommand):
    """A command whose options do not take another option for their value.

    click would read `--eval test.en -o bundle` as the two files `test.en` and `-o`. Write `--option=-o` for a value
    that is spelled like an option.
    """

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """As click does it. Raises BadParameter where an option stands in place of a value."""
        _check_values(self.get_params(ctx), list(takewhile(lambda word: word != "--", args)), ctx)
        return super().parse_args(ctx, args)


def _check_values(params: Sequence[Parameter], args: Sequence[str], ctx: Context) -> None:
    options = [option for option in params if isinstance(option, TyperOption)]
    named = {name: option for option in options for name in (*option.opts, *option.secondary_opts)}
    at = 0
    while at < len(args):
        option = named.get(args[at])
        number = 0 if option is None or option.is_flag or option.count else option.nargs
        for value in args[at + 1 : at + 1 + number]:
            if option and value in named:
                values = "a value" if number == 1 else f"{number} values"
                raise BadParameter(f"it takes {values}, and {value} is an option", ctx, option)
        at += 1 + number

"""`hmc bench`: measures a bundle. `hmc bench BUNDLE …` is short for `hmc bench run BUNDLE …`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import typer
from typer.core import TyperGroup

from hmc.cli.common.commands import CheckedCommand, guarded

if TYPE_CHECKING:
    from typer._click.core import Context  # the type of what is overridden; never imported

COMMANDS = ("run", "compare", "load")
"""In the order of `hmc bench --help`. Each is a module of its name with a function `command`."""
DEFAULT = COMMANDS[0]


class DefaultGroup(TyperGroup):
    """A group with a default command, its first one. `--help` or `-h` alone is the help of the group."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Puts the default command before arguments that name no command."""
        return super().parse_args(ctx, self.completed(args))

    def completed(self, args: list[str]) -> list[str]:
        """The arguments with the name of a command first."""
        return args if args and (args[0] in self.commands or args in (["--help"], ["-h"])) else [DEFAULT, *args]


def group() -> typer.Typer:
    """The group of all its commands."""
    app = typer.Typer(
        cls=DefaultGroup,
        help="Measure a bundle, compare two measurements, put load on a server. `hmc bench BUNDLE …` is `hmc bench run "
        "BUNDLE …`; `hmc bench run --help` lists its options.",
    )
    app.callback()(lambda: None)
    for name in COMMANDS:
        module = import_module(f"hmc.cli.bench.{name.replace('-', '_')}")
        app.command(name, cls=CheckedCommand)(guarded(module.command))
    return app

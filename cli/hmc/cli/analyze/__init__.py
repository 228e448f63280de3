"""`hmc analyze`: what the heads of a checkpoint do. One thin function per subcommand, imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import typer
from typer.core import TyperGroup
from typer.main import get_command as to_click

from hmc.cli.common.commands import CheckedCommand, guarded

if TYPE_CHECKING:
    from typer._click.core import Command, Context  # the types of what is overridden; never imported

ANALYSES = {
    "importance": "masking",
    "ablate": "masking",
    "all-but-one": "masking",
    "groups": "masking",
    "cumulative": "masking",
    "profile": "masking",
    "correlate": "across",
    "compare": "across",
    "survivors": "across",
    "budgets": "across",
    "trajectory": "across",
    "confidence": "heads",
    "lrp": "heads",
    "roles": "heads",
    "attention": "heads",
}
"""Subcommand → module of `hmc.cli.analyze` with a function of its name, in the order of `hmc analyze --help`.

A module may import only the standard library and typer when it loads."""


class LazyGroup(TyperGroup):
    """Imports a subcommand's module only for that subcommand, or for the help that lists all of them."""

    def list_commands(self, ctx: Context) -> list[str]:  # noqa: ARG002
        return list(ANALYSES)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:  # noqa: ARG002
        # For an unknown name all are loaded, so that typer can suggest the nearest one.
        for name in [cmd_name] if cmd_name in ANALYSES else list(ANALYSES):
            if name not in self.commands:
                self.commands[name] = _load(name)
        return self.commands.get(cmd_name)


def _load(name: str) -> Command:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    module = import_module(f"hmc.cli.analyze.{ANALYSES[name]}")
    app.command(name, cls=CheckedCommand)(guarded(getattr(module, name.replace("-", "_"))))
    return to_click(app)


def group() -> typer.Typer:
    """The group, without its subcommands."""
    app = typer.Typer(cls=LazyGroup, no_args_is_help=True, help="Study the heads of a checkpoint: data and figures.")
    app.callback()(lambda: None)
    return app

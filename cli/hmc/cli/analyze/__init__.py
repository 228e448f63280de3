"""`hmc analyze`: what the heads of a checkpoint do. One thin module per subcommand, imported on first use."""

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
    "importance": "importance",
    "ablate": "ablate",
    "all-but-one": "all_but_one",
    "groups": "masked_groups:groups",
    "cumulative": "masked_groups:cumulative",
    "profile": "profile",
    "correlate": "correlate",
    "compare": "compare",
    "survivors": "survivors",
    "budgets": "budgets",
    "trajectory": "trajectory",
    "confidence": "confidence",
    "lrp": "lrp",
    "roles": "roles",
    "attention": "attention",
}
"""Subcommand → MODULE or MODULE:FUNCTION in `hmc.cli.analyze`, in the order of `hmc analyze --help`.

Without FUNCTION it is `command`. A module may import only the standard library and typer when it loads."""


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
    module, _, function = ANALYSES[name].partition(":")
    app.command(name, cls=CheckedCommand)(
        guarded(getattr(import_module(f"hmc.cli.analyze.{module}"), function or "command"))
    )
    return to_click(app)


def group() -> typer.Typer:
    """The group, without its subcommands."""
    app = typer.Typer(cls=LazyGroup, no_args_is_help=True, help="Study the heads of a checkpoint: data and figures.")
    app.callback()(lambda: None)
    return app

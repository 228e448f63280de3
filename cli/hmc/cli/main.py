"""The `hmc` command: one list of commands, each a module of this package with a function `command`."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from hmc.cli.errors import guarded

# In the order of `hmc --help`. Each name is a module `hmc.cli.NAME` whose function `command` is the command; the module
# may import only the standard library, typer and `hmc.cli.options` when it loads. A name that Python reserves ends in
# `_` there.
COMMANDS = (
    "train",
    "prune",
    "import_",
    "export",
    "compile",
    "serve",
    "translate",
    "score",
    "levels",
    "bench",
    "demo",
)
# Groups of commands, shown after them: each a module or package `hmc.cli.NAME` with a function `group`.
GROUPS = ("admin", "analyze")


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"hmc {version('hmc')}")
        raise typer.Exit


def build() -> typer.Typer:
    """The application with every command."""
    app = typer.Typer(
        name="hmc",
        help="Translation models with fewer heads: train, prune, compile, serve and measure them.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_common)
    for name in COMMANDS:
        app.command(name.rstrip("_"))(guarded(import_module(f"hmc.cli.{name}").command))
    for name in GROUPS:
        app.add_typer(import_module(f"hmc.cli.{name}").group(), name=name)
    return app


def _common(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """What every command has."""


def main() -> None:
    """Entry point of the console script."""
    build()()

"""The `hmc` command: one list of commands, each a module of this package with a function `command`."""

from __future__ import annotations

from importlib import import_module

import typer

from hmc.cli.errors import guarded

# In the order of `hmc --help`. Each name is a module `hmc.cli.NAME` whose function `command` is the command; the module
# may import only the standard library and typer when it loads. A name that Python reserves ends in `_` there.
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
# Groups of commands, shown after them: each a package `hmc.cli.NAME` with a function `group`.
GROUPS = ("analyze",)


def build() -> typer.Typer:
    """The application with every command."""
    app = typer.Typer(
        name="hmc",
        help="Translation models with fewer heads: train, prune, compile, serve and measure them.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(lambda: None)
    for name in COMMANDS:
        app.command(name.rstrip("_"))(guarded(import_module(f"hmc.cli.{name}").command))
    for name in GROUPS:
        app.add_typer(import_module(f"hmc.cli.{name}").group(), name=name)
    return app


def main() -> None:
    """Entry point of the console script."""
    build()()

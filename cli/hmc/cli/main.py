"""The `hmc` command: one list of commands, each a module of this package with a function `command`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from hmc.cli.common.commands import CheckedCommand, guarded, reported

# In the order of `hmc --help`. Each name is a module or package `hmc.cli.NAME` with a function `command`, or `group` if
# it is one of GROUPS. On import it may load only the standard library, typer and `hmc.cli.common.options`. The name of
# a reserved word ends in `_`.
COMMANDS = {
    "Make a bundle": ("up", "train", "distill", "prune", "import_", "export", "compile"),
    "Translate": ("serve", "translate", "score"),
    "Look": ("levels", "bench", "analyze", "demo"),
    "Run a server": ("health", "admin", "token"),
}
GROUPS = ("bench", "admin", "token", "analyze")
HELP_WIDTH = "120"
"""Columns of help that does not go to a terminal."""


def _show_version(asked: bool) -> None:
    if asked:
        from hmc.artifact.distribution import VERSION

        typer.echo(f"hmc {VERSION}")
        raise typer.Exit


def build(words: Sequence[str] | None = None) -> typer.Typer:
    """The application with every command. words: of the command line; commands that are not among them get no options,
    which take time to make. None: every command gets its own."""
    app = typer.Typer(
        name="hmc",
        help="Translation models with fewer heads: train, prune, compile, serve and measure them.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    for panel, names in COMMANDS.items():
        for name in names:
            module = import_module(f"hmc.cli.{name}")
            if name in GROUPS:
                app.add_typer(module.group(), name=name, rich_help_panel=panel)
            else:
                word = name.rstrip("_")
                command = guarded(module.command, bare=words is not None and word not in words)
                app.command(word, cls=CheckedCommand, rich_help_panel=panel)(command)
    return app


def _common(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Options of `hmc` itself."""


class _Stdout(io.FileIO):
    """Standard output. Its errors say what could not be written."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = "standard output"
            raise


@reported()
def main() -> None:
    """Entry point of the console script."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Stdout(sys.stdout.fileno(), "w", closefd=False)),
            encoding="utf-8",  # whatever the locale
            errors=sys.stdout.errors,
            line_buffering=sys.stdout.line_buffering or sys.stdout.write_through,  # PYTHONUNBUFFERED writes through
        )
    if not (sys.stdout and sys.stdout.isatty()):  # typer reads the width of its help here; without, it wraps at 80
        os.environ.setdefault("TERMINAL_WIDTH", HELP_WIDTH)
    try:
        build(None if "_HMC_COMPLETE" in os.environ else sys.argv[1:])()
    except SystemExit as ended:  # every command line ends with it
        if isinstance(ended.__context__, BrokenPipeError):  # typer's own text, such as help, in a pipe that was closed
            raise ended.__context__ from None
        if sys.stdout is not None:
            sys.stdout.flush()
        raise

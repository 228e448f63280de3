"""Consoles to print tables and notes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

FILE_WIDTH = 1000
"""Columns of a file or a pipe. Without it a table would be cut to the 80 columns that a terminal is taken to have."""


def open_console(*, stderr: bool = False) -> Console:
    """A console on standard output or standard error. What goes to a file or a pipe is not wrapped."""
    from rich.console import Console

    console = Console(stderr=stderr)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    return console


def note(console: Console, text: str, *, style: str | None = None) -> None:
    """Prints a text as it is: no markup, no highlighting, and not wrapped, so that commands can be copied."""
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

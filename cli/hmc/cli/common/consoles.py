"""Consoles, and what several commands print: notes, checkpoints with their scores, levels as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from hmc.serving.requests.results import LevelInfo, LevelList


EMPTY: Mapping[Path, str] = MappingProxyType({})
FILE_WIDTH = 1000
"""Columns of a file or a pipe. Without it a table would be cut to the 80 columns that a terminal is taken to have."""


_quiet = False
"""Whether this command line has --quiet."""


def say(*, quiet: bool, verbose: bool) -> None:
    """Sets how much this command says and logs. Raises InvalidRequestError for both."""
    global _quiet  # noqa: PLW0603 - of the command line, of which a process has one
    import logging

    from hmc.artifact.errors import InvalidRequestError

    if quiet and verbose:
        raise InvalidRequestError("--quiet and --verbose are opposites: give one")
    _quiet = quiet
    if verbose:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    level = logging.NOTSET
    if quiet:
        level = logging.WARNING
    elif verbose:
        level = logging.DEBUG
    logging.getLogger("hmc").setLevel(level)


def open_console(*, stderr: bool = False) -> Console:
    """A console on standard output or standard error. Output to a file or a pipe is not wrapped. With --quiet, nothing
    goes to standard error."""
    from rich.console import Console

    console = Console(stderr=stderr, quiet=stderr and _quiet)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    return console


def note(console: Console, text: str, *, style: str | None = None) -> None:
    """Prints a text as it is: no markup, no highlighting, and not wrapped, so that commands can be copied."""
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def show_checkpoints(paths: list[Path], as_json: bool, compared: Mapping[Path, str] = EMPTY) -> None:
    """Prints checkpoints with the dev scores that are stored in them. compared: further sentences about some of
    them."""
    import json

    from hmc.artifact.checkpoint.checkpoint import load_checkpoint

    checkpoints = [(path, load_checkpoint(path)) for path in paths]
    if as_json:
        rows = [
            {"checkpoint": str(path), "heads": checkpoint.layout.total, "metrics": checkpoint.metrics}
            | ({"compared": compared[path]} if path in compared else {})
            for path, checkpoint in checkpoints
        ]
        typer.echo(json.dumps(rows, indent=1))
        return
    for path, checkpoint in checkpoints:
        typer.echo(f"{path}: {checkpoint.layout.total} heads")
        for name, scores in checkpoint.metrics.items():
            values = f"BLEU {scores['bleu']:.2f}  chrF {scores['chrf']:.2f}"
            typer.echo(f"  {name}: {values}  (beam {scores['beam']}; {scores['bleu_signature']})")
        if path in compared:
            typer.echo(f"  {compared[path]}")


def show_plan(plan: dict[str, str], as_json: bool) -> None:
    """Prints what a command would do."""
    import json

    typer.echo(json.dumps(plan, indent=1) if as_json else "\n".join(f"{name}: {what}" for name, what in plan.items()))


def levels_as_json(listed: LevelList | LevelInfo) -> str:
    """All fields of one level, or of a list of levels."""
    import dataclasses
    import json

    return json.dumps(dataclasses.asdict(listed), indent=1, default=lambda model: model.model_dump())

"""`hmc token`: makes tokens for the tokens file of a server."""

from __future__ import annotations

from typing import Annotated

import typer

from hmc.cli.common.commands import CheckedCommand, guarded
from hmc.cli.common.options import opt

LIMITS = "Limits"


def group() -> typer.Typer:
    """The group of the command new."""
    app = typer.Typer(no_args_is_help=True, help="Make tokens for `hmc serve --tokens`.")
    app.callback()(lambda: None)
    app.command(cls=CheckedCommand)(guarded(new))
    return app


def new(
    name: Annotated[str, typer.Argument(help="Name of the caller: letters, digits, - and _.", metavar="NAME")],
    scope: Annotated[
        list[str], typer.Option(help="What the token opens: translate, admin or metrics. Repeatable.", metavar="SCOPE")
    ],
    texts_per_second: Annotated[float | None, opt(LIMITS, "Texts a second. Default: no limit.")] = None,
    burst: Annotated[int | None, opt(LIMITS, "Texts at once after a pause. Default: those of one second.")] = None,
    max_characters: Annotated[int | None, opt(LIMITS, "Characters in one call. Default: no limit.")] = None,
    weight: Annotated[float | None, opt(LIMITS, "Share of a busy server. Default: 1.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print both as JSON.")] = False,
) -> None:
    """Make a random token. Prints it, this once, and the line for the tokens file, which holds only its hash."""
    limits = {
        "texts_per_second": texts_per_second, "burst": burst, "max_characters": max_characters, "weight": weight,
    }  # fmt: skip
    import json

    from hmc.serving.server.access.tokens import line_of, new_token

    token = new_token()
    line = line_of(name, token, scope, {key: value for key, value in limits.items() if value is not None})
    if json_output:
        typer.echo(json.dumps({"name": name, "token": token, "line": line}))
        return
    typer.echo(f"Token of {name}, shown this once:\n{token}\n\nLine for the tokens file:\n{line}")

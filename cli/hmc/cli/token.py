"""`hmc token`: makes tokens for the tokens file of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hmc.cli.common.commands import CheckedCommand, guarded
from hmc.cli.common.options import opt

LIMITS = "Limits"
OUTPUT = "Output"


def group() -> typer.Typer:
    """The group of the command new."""
    app = typer.Typer(no_args_is_help=True, help="Make tokens for `hmc serve --tokens`.")
    app.callback()(lambda: None)
    app.command(cls=CheckedCommand)(guarded(new))
    return app


def new(
    name: Annotated[str, typer.Argument(help="Name of the caller: letters, digits, - and _.", metavar="NAME")],
    scope: Annotated[
        list[str],
        typer.Option(help="Service that the token opens: translate, admin or metrics. Repeatable.", metavar="SCOPE"),
    ],
    texts_per_second: Annotated[float | None, opt(LIMITS, "Texts a second. Default: no limit.")] = None,
    burst: Annotated[int | None, opt(LIMITS, "Texts at once after a pause. Default: as many as in one second.")] = None,
    max_characters: Annotated[int | None, opt(LIMITS, "Characters in one call. Default: no limit.")] = None,
    weight: Annotated[float | None, opt(LIMITS, "Share of a busy server. Default: 1.")] = None,
    out: Annotated[
        Path | None,
        opt(OUTPUT, "Write the token to this new file, which only you may read.", "--out", "-o", metavar="FILE"),
    ] = None,
    append: Annotated[
        Path | None, opt(OUTPUT, "Add the line to this tokens file (TOML), a new one or the server's.", metavar="FILE")
    ] = None,
    json_output: Annotated[
        bool, opt(OUTPUT, "Print the token and the line as JSON.", "--json", without="out append")
    ] = False,
) -> None:
    """Make a random token. Prints the token, only this once, and a line with its hash for the tokens file.

    With --out and --append, the token and the line go to files and are not printed.
    """
    limits = {
        "texts_per_second": texts_per_second, "burst": burst, "max_characters": max_characters, "weight": weight,
    }  # fmt: skip
    import json
    import os

    from hmc.artifact.errors import InvalidRequestError
    from hmc.artifact.storage.files import write_whole
    from hmc.cli.common.outputs import check_file
    from hmc.serving.server.access.tokens import line_of, new_token, read_tokens

    token = new_token()
    line = line_of(name, token, scope, {key: value for key, value in limits.items() if value is not None})
    if json_output:
        typer.echo(json.dumps({"name": name, "token": token, "line": line}))
        return
    former = ""
    if append is not None:
        check_file("--append", append)
        if append.suffix == ".json":
            raise InvalidRequestError(f"--append {append}: lines are added to TOML; name a file that ends in .toml")
        if append.exists() and append.stat().st_size:
            if name in read_tokens(append).tokens:
                raise InvalidRequestError(f"--append {append}: it has a token {name!r}; choose another name")
            former = append.read_text(encoding="utf-8").rstrip("\n") + "\n"
    if out is None:
        typer.echo(f"Token of {name}, shown this once:\n{token}\n")
    else:
        check_file("--out", out)
        try:
            handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as error:
            raise InvalidRequestError(f"--out {out} exists, and may be a token in use; name a new file") from error
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(token + "\n")
        typer.echo(f"Token of {name}: {out}")
    if append is None:
        typer.echo(f"Line for the tokens file:\n{line}")
        return
    if not append.exists():
        os.close(os.open(append, os.O_WRONLY | os.O_CREAT, 0o600))
    write_whole(append, former + line + "\n")
    typer.echo(f"Its line is in {append}. A server that runs reads it again on SIGHUP.")

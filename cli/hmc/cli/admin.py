"""`hmc admin`: change what a running server has loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmc.cli.errors import guarded
from hmc.cli.options import SERVER, WHERE, TlsCa, Token

if TYPE_CHECKING:
    from hmc.serving.client import Client

Name = Annotated[str, typer.Argument(help="Name of a level, as `hmc levels` lists it.", metavar="LEVEL")]
Server = Annotated[str, SERVER]
Timeout = Annotated[
    float | None,
    typer.Option(help="Seconds to wait until it is done; default: no limit.", rich_help_panel=WHERE),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def group() -> typer.Typer:
    """The group with its three commands."""
    app = typer.Typer(no_args_is_help=True, help="Change what a running server has loaded, without losing a request.")
    app.callback()(lambda: None)
    for command in (load, unload, reload):
        app.command()(guarded(command))
    return app


def load(
    name: Name,
    server: Server,
    token: Token = None,
    tls_ca: TlsCa = None,
    timeout: Timeout = None,
    json_output: AsJson = False,
) -> None:
    """Load a level of the server's bundle and warm it up. Does nothing if it is loaded."""
    from hmc.cli.levels import as_json

    with _asking(server, token, tls_ca, timeout) as client:
        level = client.load_level(name, timeout=timeout)
    typer.echo(as_json(level) if json_output else f"{level.name} is loaded and serves.")


def unload(
    name: Name,
    server: Server,
    token: Token = None,
    tls_ca: TlsCa = None,
    timeout: Timeout = None,
    json_output: AsJson = False,
) -> None:
    """Unload a level: it gets no new requests, finishes those it has, and its memory is freed."""
    from hmc.cli.levels import as_json

    with _asking(server, token, tls_ca, timeout) as client:
        level = client.unload_level(name, timeout=timeout)
    typer.echo(as_json(level) if json_output else f"{level.name} is unloaded.")


def reload(
    server: Server,
    bundle: Annotated[
        str | None,
        typer.Argument(
            help="Absolute path on the server's machine; default: the bundle it has, read again.", metavar="BUNDLE"
        ),
    ] = None,
    token: Token = None,
    tls_ca: TlsCa = None,
    timeout: Timeout = None,
    json_output: AsJson = False,
) -> None:
    """Load a bundle beside the present one and switch to it; if it cannot be used, the present one stays."""
    import json

    from hmc.artifact.errors import InvalidRequestError

    if bundle is not None and not Path(bundle).is_absolute():
        raise InvalidRequestError(f"bundle {bundle!r}: give an absolute path; it is looked up on the server's machine")
    with _asking(server, token, tls_ca, timeout) as client:
        version = client.reload(bundle, timeout=timeout)
    typer.echo(json.dumps({"bundle_version": version}) if json_output else f"Bundle {version} serves.")


@contextmanager
def _asking(server: str, token: str | None, tls_ca: Path | None, timeout: float | None) -> Iterator[Client]:
    """As `connected`; a server that is not done in time is said to go on, as it does."""
    from hmc.artifact.errors import DeadlineExceededError
    from hmc.cli.connection import connected

    try:
        with connected(server, token, tls_ca) as client:
            yield client
    except DeadlineExceededError as error:
        raise DeadlineExceededError(
            f"{server} is not done after {timeout:g} s, and goes on: requests under way are finished first. "
            f"`hmc levels --server {server}` shows what is loaded; a greater --timeout waits longer"
        ) from error

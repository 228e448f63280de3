"""`hmc admin`: loads, unloads or replaces levels of a running server, and shows what they do now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmc.cli.common.commands import CheckedCommand, guarded
from hmc.cli.common.options import NO_TLS, SERVER, WHERE, Tls, Token, opt

if TYPE_CHECKING:
    from hmc.serving.client import Client, LevelInfo, ServerStatus

Name = Annotated[str, typer.Argument(help="Name of a level, as `hmc levels` lists it.", metavar="LEVEL")]
Server = Annotated[str, SERVER]
Model = Annotated[str | None, opt(WHERE, "Name of the model, if the server has several. Default: its first model.")]
Timeout = Annotated[float | None, opt(WHERE, "Seconds to wait until the server is done. Default: no limit.")]
AsJson = Annotated[bool, opt("Output", "Print the result as JSON.", "--json")]


def group() -> typer.Typer:
    """The group of the commands status, load, unload, default and reload."""
    app = typer.Typer(
        no_args_is_help=True,
        help="See what a running server does; load, unload or replace its levels without losing a request.",
    )
    app.callback()(lambda: None)
    for command in (status, load, unload, default, reload):
        app.command(cls=CheckedCommand)(guarded(command))
    return app


def status(
    server: Server,
    model: Annotated[
        str | None, opt(WHERE, "Name of the model, if the server has several. Default: all models.")
    ] = None,
    token: Token = None,
    tls: Tls = NO_TLS,
    timeout: Annotated[float, opt(WHERE, "Seconds to wait for the server's answer.")] = 10.0,
    json_output: AsJson = False,
) -> None:
    """Show what the loaded levels of a server do now: queues, running batches and memory."""
    import json
    from dataclasses import asdict

    with _asking(server, token, tls, timeout) as client:
        found = client.status(timeout, model=model)
    typer.echo(json.dumps(asdict(found)) if json_output else "\n".join(_lines(found)))


def _lines(found: ServerStatus) -> Iterator[str]:
    """A line for each level, its batches below it, and the memory of the process and of devices."""
    for level in found.levels:
        rows = sum(batch.rows for batch in level.batches)
        held = " and ".join(
            f"{(size.own + size.shared) / 2**20:.1f} MiB {where}"
            for size, where in ((level.memory, "of weights"), (level.device_memory, "on the device"))
            if size is not None
        )
        yield (
            f"{level.model}/{level.level}: {level.queued} of {level.queue_size} sentences in the queue, {rows} of "
            + (f"{level.max_rows} rows at work, {held}")
        )
        if level.failure:
            yield f"  stopped: {level.failure}"
        for batch in level.batches:
            kind = "interactive" if batch.interactive else "other"
            yield f"  worker {batch.worker}: {batch.sentences} {kind} sentences in {batch.rows} rows"
    if not found.levels:
        yield "No level is loaded."
    if found.memory_bytes:
        yield f"process: {found.memory_bytes / 2**20:.0f} MiB"
    for device in found.devices:
        most = f" of {device.budget / 2**20:.0f}" if device.budget else ""
        yield f"{device.device}: {device.reserved / 2**20:.0f}{most} MiB reserved, {device.free / 2**20:.0f} MiB free"


def _level_command(
    named: str, method: Callable[[Client], Callable[..., LevelInfo]], done: str, description: str
) -> Callable[..., None]:
    """The command `named`, which changes one level. method: of the client. done: what is said of the level then."""

    def command(
        name: Name,
        server: Server,
        model: Model = None,
        token: Token = None,
        tls: Tls = NO_TLS,
        timeout: Timeout = None,
        json_output: AsJson = False,
    ) -> None:
        from hmc.cli.common.consoles import levels_as_json

        with _asking(server, token, tls, timeout) as client:
            level = method(client)(name, timeout=timeout, model=model)
        typer.echo(levels_as_json(level) if json_output else f"{level.name} {done}.")

    command.__name__ = named
    command.__doc__ = description
    return command


load = _level_command(
    "load",
    lambda client: client.load_level,
    "is loaded and serves",
    "Load a level of the server's bundle and warm it up. A level that is loaded already stays as it is.",
)
unload = _level_command(
    "unload",
    lambda client: client.unload_level,
    "is unloaded",
    "Unload a level: it gets no new requests, finishes the running ones, and its memory is freed.",
)
default = _level_command(
    "default",
    lambda client: client.set_default_level,
    "is the default level",
    "Make a loaded level the default level, for requests that choose none, until the next reload.",
)


def reload(
    server: Server,
    bundle: Annotated[
        str | None,
        typer.Argument(
            help="Absolute path on the server's machine. Default: the present bundle, read again.",
            metavar="BUNDLE",
        ),
    ] = None,
    model: Model = None,
    token: Token = None,
    tls: Tls = NO_TLS,
    timeout: Timeout = None,
    json_output: AsJson = False,
) -> None:
    """Load a bundle and switch to it without losing a request. If loading fails, the present bundle stays."""
    import json

    from hmc.artifact.errors import InvalidRequestError

    if bundle is not None and not Path(bundle).is_absolute():
        raise InvalidRequestError(f"bundle {bundle!r}: give an absolute path; it is looked up on the server's machine")
    with _asking(server, token, tls, timeout) as client:
        version = client.reload(bundle, timeout=timeout, model=model)
    typer.echo(json.dumps({"bundle_version": version}) if json_output else f"Bundle {version} serves.")


@contextmanager
def _asking(server: str, token: str | None, tls: Tls, timeout: float | None) -> Iterator[Client]:
    """As `connected`. If the time is up, the error says that the server continues."""
    from hmc.artifact.errors import DeadlineExceededError
    from hmc.cli.common.options import connected

    try:
        with connected(server, token, tls) as client:
            yield client
    except DeadlineExceededError as error:
        raise DeadlineExceededError(
            f"{server} is not done after {timeout:g} s and continues: it finishes running requests first. "
            f"`hmc levels --server {server}` shows which levels are loaded; a greater --timeout waits longer"
        ) from error

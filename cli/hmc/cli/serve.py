"""`hmc serve`: the gRPC server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hmc.cli.common.options import opt, options_of

OPERATION = "Operation"
RAY = "Ray Serve"
PANELS = {
    "host": OPERATION,
    "device": "Device and threads",
    "levels": "Which levels",
    "queue_size": "How much at a time",
    "auto_pending": "The level `auto`",
    "tls_cert": "Security",
    "max_connections": "Limits of connections",
}


def server_options() -> type:
    """The settings as options."""
    from hmc.serving.server.settings import ServerSettings

    return options_of(ServerSettings.model_fields, PANELS)


def command(
    bundles: Annotated[
        list[str] | None,
        typer.Argument(
            help="Directories that `hmc compile` wrote, each with the name of its model, as in en-de=BUNDLE. Without a "
            "name, the model is called after its languages. The first model serves requests that choose none.",
            metavar="[NAME=]BUNDLE...",
            show_default=False,
        ),
    ] = None,
    *,
    options: Annotated[Any, server_options],
    config: Annotated[
        Path | None,
        opt(
            OPERATION,
            "TOML file of settings. The environment (HMC_PORT …) and options override it. Default: HMC_CONFIG.",
            metavar="FILE",
        ),
    ] = None,
    print_config: Annotated[
        bool, opt(OPERATION, "Print all settings and where each comes from, and exit.", "--print-config")
    ] = False,
    json_output: Annotated[bool, opt(OPERATION, "Print the address as a line of JSON.", "--json")] = False,
    ray: Annotated[bool, opt(RAY, "Serve through Ray Serve: replicas of the levels behind one port.", "--ray")] = False,
    replicas: Annotated[
        str | None,
        opt(
            RAY,
            "With --ray: number of replicas; or two numbers such as 1:3, between which it follows the queued texts.",
            needs="ray",
            metavar="N|MIN:MAX",
            show_default="1",
        ),
    ] = None,
) -> None:
    """Serve bundles over gRPC, at the level that each request chooses.

    Every option can also be given in a file (--config) or in the environment (HMC_PORT for --port).

    After SIGTERM or Ctrl-C the server refuses new calls and finishes running ones. A second signal stops it at once.
    """
    import logging
    import os

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are raised; gRPC's own log would only clutter the terminal
    from hmc.artifact.errors import InvalidRequestError
    from hmc.cli.common.options import check_unused, given_options
    from hmc.cli.running import serve_models, serve_on_ray
    from hmc.serving.server.configuration import as_toml, load, shown
    from hmc.serving.server.observing.logs import set_up

    given = given_options(options)
    if bundles is not None:
        given["bundles"] = bundles
    # In a file or the environment they may stand for other servers.
    if given.get("device") == "cpu":
        reason = "works only on CUDA, and not with --device cpu: leave it out"
        check_unused(reason, gpu_memory=given.get("gpu_memory"), gpu_attention=given.get("gpu_attention"))
    if given.get("connection_age_seconds") == 0:
        reason = "follows --connection-age-seconds, which 0 turns off: leave it out"
        check_unused(reason, connection_grace_seconds=given.get("connection_grace_seconds"))
    configuration = load(given, os.environ, config)
    settings = configuration.settings
    if print_config:
        typer.echo(json.dumps(shown(configuration)) if json_output else as_toml(configuration), nl=json_output)
        return
    if not settings.bundles:
        raise InvalidRequestError("no bundle to serve: give [NAME=]BUNDLE, or `bundles` in the file")
    if ray and settings.fronts is not None:
        raise InvalidRequestError("--fronts does not work with --ray: give --replicas instead")
    set_up(settings.log_format, texts=settings.log_texts)

    def say_settings() -> None:  # once it serves: an error is then not preceded by them
        effective = shown(configuration)
        logging.getLogger("hmc").info("settings %s", json.dumps(effective), extra={"fields": {"settings": effective}})

    if ray:
        serve_on_ray(settings.bundles, settings, replicas or "1", say_settings, json_output=json_output)
        return
    serve_models(settings.bundles, settings, say_settings, json_output=json_output)

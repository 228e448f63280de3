"""Options of `hmc serve` about who may call, limits, logs and files of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SECURITY, LIMITS, OPERATION, RAY = "Security", "Limits of connections", "Operation", "Ray Serve"

TlsCert = Annotated[
    Path | None,
    typer.Option(
        help="PEM certificate chain. With it and --tls-key the server accepts only TLS. Read again when it changes.",
        metavar="FILE",
        rich_help_panel=SECURITY,
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(help="PEM private key of the certificate, unencrypted.", metavar="FILE", rich_help_panel=SECURITY),
]
TlsClientCa = Annotated[
    Path | None,
    typer.Option(
        help="PEM file of authorities. Every client must then show a certificate of one of them (mutual TLS).",
        metavar="FILE",
        rich_help_panel=SECURITY,
    ),
]
OneToken = Annotated[
    str | None,
    typer.Option(
        help="Token that opens everything. Set it in the environment (HMC_TOKEN): other users can see command lines.",
        rich_help_panel=SECURITY,
    ),
]
Tokens = Annotated[
    Path | None,
    typer.Option(
        help="TOML or JSON file of hashed tokens with scopes and limits; `hmc token new` writes its lines. Read again "
        "when it changes.",
        metavar="FILE",
        rich_help_panel=SECURITY,
    ),
]
AdminAddress = Annotated[
    str | None,
    typer.Option(
        help="Serve AdminService only here: HOST:PORT, or unix:PATH. Default: beside TranslationService.",
        metavar="ADDRESS",
        rich_help_panel=SECURITY,
    ),
]
BundleRoot = Annotated[
    Path | None,
    typer.Option(
        help="Folder below which the bundles of a reload must lie. Default: the folder that holds the bundle.",
        metavar="DIR",
        rich_help_panel=SECURITY,
    ),
]
Watch = Annotated[
    float | None,
    typer.Option(
        help="Look at the paths of the bundles this often, and load a new version that is put there. Default: never.",
        metavar="SECONDS",
        rich_help_panel=OPERATION,
    ),
]
MaxConnections = Annotated[
    int | None,
    typer.Option(
        help="Most connections to each port; further ones are closed at once.",
        show_default="1024",
        rich_help_panel=LIMITS,
    ),
]
MaxStreams = Annotated[
    int | None,
    typer.Option(help="Most calls at a time on one connection.", show_default="1024", rich_help_panel=LIMITS),
]
MaxMessageMib = Annotated[
    int | None, typer.Option(help="Largest request, in MiB.", show_default="64", rich_help_panel=LIMITS)
]
MaxMetadataKib = Annotated[
    int | None, typer.Option(help="Largest metadata of a call, in KiB.", show_default="16", rich_help_panel=LIMITS)
]
ConnectionAge = Annotated[
    float | None,
    typer.Option(
        help="Seconds after which a connection takes no further calls, and the client opens another. 0: no limit.",
        show_default="3600.0",
        rich_help_panel=LIMITS,
    ),
]
ConnectionGrace = Annotated[
    float | None,
    typer.Option(
        help="Seconds that running calls of a connection have left when it has reached its age. 0: no limit.",
        show_default="0.0",
        rich_help_panel=LIMITS,
    ),
]
ConnectionIdle = Annotated[
    float | None,
    typer.Option(
        help="Seconds without a call after which a connection is closed. 0: no limit.",
        show_default="900.0",
        rich_help_panel=LIMITS,
    ),
]
TraceTo = Annotated[
    str | None,
    typer.Option(
        help="Send a span of every call to this OpenTelemetry collector (OTLP over HTTP), such as "
        "http://localhost:4318. Needs the extra `tracing`. Default: no spans.",
        metavar="URL",
        rich_help_panel=OPERATION,
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option(help="text, or json: an object a line.", show_default="text", rich_help_panel=OPERATION),
]
LogCalls = Annotated[
    bool | None,
    typer.Option("--log-calls/--no-log-calls", help="Log a line for every call.", rich_help_panel=OPERATION),
]
LogTexts = Annotated[
    bool | None,
    typer.Option(
        "--log-texts/--no-log-texts",
        help="Let the log hold texts: those of every call, and what unexpected errors quote.",
        rich_help_panel=OPERATION,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        help="TOML file of settings. The environment (HMC_PORT …) and options go before it. Default: HMC_CONFIG.",
        metavar="FILE",
        rich_help_panel=OPERATION,
    ),
]
PrintConfig = Annotated[
    bool,
    typer.Option(
        "--print-config", help="Print all settings and where each comes from, and exit.", rich_help_panel=OPERATION
    ),
]
Ray = Annotated[
    bool,
    typer.Option("--ray", help="Serve through Ray Serve: replicas of the levels behind one port.", rich_help_panel=RAY),
]
Replicas = Annotated[
    str | None,
    typer.Option(
        help="With --ray: their number, or two numbers such as 1:3, between which it follows the queued texts.",
        metavar="N|MIN:MAX",
        show_default="1",
        rich_help_panel=RAY,
    ),
]

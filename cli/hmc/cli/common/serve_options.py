"""Options of `hmc serve` about who may call, limits, logs and files of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from hmc.cli.common.options import opt

SECURITY, LIMITS, OPERATION, RAY = "Security", "Limits of connections", "Operation", "Ray Serve"

TlsCert = Annotated[
    Path | None,
    opt(
        SECURITY,
        "PEM certificate chain. With it and --tls-key the server accepts only TLS. Read again when it changes.",
        metavar="FILE",
    ),
]
TlsKey = Annotated[Path | None, opt(SECURITY, "PEM private key of the certificate, unencrypted.", metavar="FILE")]
TlsClientCa = Annotated[
    Path | None,
    opt(
        SECURITY,
        "PEM file of authorities. Every client must then show a certificate of one of them (mutual TLS).",
        metavar="FILE",
    ),
]
OneToken = Annotated[
    str | None,
    opt(
        SECURITY,
        "Token that opens everything. Set it in the environment (HMC_TOKEN): other users can see command lines.",
    ),
]
Tokens = Annotated[
    Path | None,
    opt(
        SECURITY,
        "TOML or JSON file of hashed tokens with scopes and limits; `hmc token new` writes its lines. Read again "
        "when it changes.",
        metavar="FILE",
    ),
]
AdminAddress = Annotated[
    str | None,
    opt(
        SECURITY,
        "Serve AdminService only here: HOST:PORT, or unix:PATH. Default: beside TranslationService.",
        metavar="ADDRESS",
    ),
]
BundleRoot = Annotated[
    Path | None,
    opt(
        SECURITY,
        "Folder below which the bundles of a reload must lie. Default: the folder that holds the bundle.",
        metavar="DIR",
    ),
]
Watch = Annotated[
    float | None,
    opt(
        OPERATION,
        "Look at the paths of the bundles this often, and load a new version that is put there. Default: never.",
        metavar="SECONDS",
    ),
]
MaxConnections = Annotated[
    int | None, opt(LIMITS, "Most connections to each port; further ones are closed at once.", show_default="1024")
]
MaxStreams = Annotated[int | None, opt(LIMITS, "Most calls at a time on one connection.", show_default="1024")]
MaxMessageMib = Annotated[int | None, opt(LIMITS, "Largest request, in MiB.", show_default="64")]
MaxMetadataKib = Annotated[int | None, opt(LIMITS, "Largest metadata of a call, in KiB.", show_default="16")]
ConnectionAge = Annotated[
    float | None,
    opt(
        LIMITS,
        "Seconds after which a connection takes no further calls, and the client opens another. 0: no limit.",
        show_default="3600.0",
    ),
]
ConnectionGrace = Annotated[
    float | None,
    opt(
        LIMITS,
        "Seconds that running calls of a connection have left when it has reached its age. 0: no limit.",
        show_default="0.0",
    ),
]
ConnectionIdle = Annotated[
    float | None,
    opt(LIMITS, "Seconds without a call after which a connection is closed. 0: no limit.", show_default="900.0"),
]
TraceTo = Annotated[
    str | None,
    opt(
        OPERATION,
        "Send a span of every call to this OpenTelemetry collector (OTLP over HTTP), such as "
        "http://localhost:4318. Needs the extra `tracing`. Default: no spans.",
        metavar="URL",
    ),
]
LogFormat = Annotated[str | None, opt(OPERATION, "text, or json: an object a line.", show_default="text")]
LogCalls = Annotated[bool | None, opt(OPERATION, "Log a line for every call.", "--log-calls/--no-log-calls")]
LogTexts = Annotated[
    bool | None,
    opt(
        OPERATION,
        "Let the log hold texts: those of every call, and what unexpected errors quote.",
        "--log-texts/--no-log-texts",
    ),
]
Config = Annotated[
    Path | None,
    opt(
        OPERATION,
        "TOML file of settings. The environment (HMC_PORT …) and options go before it. Default: HMC_CONFIG.",
        metavar="FILE",
    ),
]
PrintConfig = Annotated[
    bool, opt(OPERATION, "Print all settings and where each comes from, and exit.", "--print-config")
]
Ray = Annotated[bool, opt(RAY, "Serve through Ray Serve: replicas of the levels behind one port.", "--ray")]
Replicas = Annotated[
    str | None,
    opt(
        RAY,
        "With --ray: their number, or two numbers such as 1:3, between which it follows the queued texts.",
        metavar="N|MIN:MAX",
        show_default="1",
    ),
]

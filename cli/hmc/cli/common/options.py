"""Options that several commands share: which server or bundle they use, at which level; the
connection; and the options of `hmc translate --engine`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from hmc.artifact.precisions import Precision
    from hmc.serving.client import Client
    from hmc.serving.requests.selectors import Selector

ENGINE = "Many lines, with --engine"


@dataclass(frozen=True)
class BulkOptions:
    """The options that only a bulk translation has."""

    engine: Annotated[
        str | None,
        opt(
            ENGINE,
            "Translate a corpus of any size into the folder --out: `local` in this process, `ray` as tasks of Ray. "
            "Both write the same files, and the same command goes on with a run that was stopped.",
            metavar="local|ray",
            without="texts document segmentation keep incremental restart",
        ),
    ] = None
    field: Annotated[
        str | None,
        opt(
            ENGINE,
            "The field of JSONL, or the column of Parquet (.parquet), that holds the text.",
            metavar="NAME",
            needs="engine",
        ),
    ] = None
    output: Annotated[
        str | None,
        opt(
            ENGINE,
            "Format of the output: text; or jsonl or parquet with number, text, translation, score, level and error "
            "of each line.",
            "--format",
            metavar="text|jsonl|parquet",
            needs="engine",
            show_default="text",
        ),
    ] = None
    shard_lines: Annotated[
        int | None, opt(ENGINE, "Lines in each file of translations.", metavar="N", needs="engine", show_default="2000")
    ] = None


N = TypeVar("N", bound=float)
WHERE = "Where"
LEVEL = "Level"
"""Panels of `--help`."""


def opt(
    panel: str, text: str, *names: str, metavar: str | None = None, needs: str = "", without: str = "", **more: Any
) -> Any:
    """An option in a panel of `--help`.

    text: what the help says. names: of the option, if they do not follow from the parameter. needs: parameters, of
    which one must be given too; without: parameters that must not be given too (`check_together` looks at both). more:
    as `typer.Option` takes it.
    """
    option: Any = typer.Option(*names, help=text, metavar=metavar, rich_help_panel=panel, **more)
    option.needs = needs.split()
    option.without = without.split()
    return option


def options_of(
    fields: Mapping[str, FieldInfo], panels: Mapping[str, str], needs: Mapping[str, str] = MappingProxyType({})
) -> type:
    """A dataclass with an option for each setting, with its meaning as help. The value of an option that is not given
    is None: the default of the settings counts then.

    fields: option → the setting. panels: option → the panel of `--help` that begins with it. needs: option → `needs` of
    `opt`.
    """
    panel = ""
    options = []
    for name, field in fields.items():
        panel = panels.get(name, panel)
        types = [part for part in get_args(field.annotation) or (field.annotation,) if part is not NoneType]
        kind = types[0] if len(types) == 1 and types[0] in (bool, int, float, Path) else str
        values = get_args(types[0]) or types
        choices = "|".join(values) if isinstance(values[0], str) else None  # it is a Literal
        metavar = next((each for each in field.metadata if isinstance(each, str)), choices)
        names = [f"{dashed(name)}/{dashed(f'no_{name}')}"] if kind is bool else []
        meaning = " ".join((field.description or "").split())
        for other in fields:
            meaning = meaning.replace(f"`{other}`", dashed(other))
        shown = kind is not bool and field.default not in (None, ()) and str(field.default)
        option = opt(panel, meaning, *names, metavar=metavar, needs=needs.get(name, ""), show_default=shown)
        options.append((name, Annotated[kind | None, option], None))
    return make_dataclass("Options", options, frozen=True)


def given_options(options: Any) -> dict[str, Any]:
    """The options of a group that are given."""
    return {name: value for name, value in vars(options).items() if value is not None}


def dashed(name: str) -> str:
    """The option of a parameter: `--max-rows` for `max_rows`."""
    return f"--{name.replace('_', '-')}"


def check_unused(reason: str, **given: object) -> None:
    """Raises InvalidRequestError for the first given option. The caller knows that it would have no effect.

    reason: the words after the option in the message. given: options by the names of their parameters; None: not given.
    """
    from hmc.artifact.errors import InvalidRequestError

    for name, value in given.items():
        if value is not None:
            raise InvalidRequestError(f"{dashed(name)} {reason}")


EvalText = Annotated[
    tuple[Path, Path] | None,
    opt(
        "Scoring",
        "Test set, source and reference file. Every level is scored on it, and the bundle records the scores.",
        "--eval",
        metavar="SRC REF",
    ),
]
RESULT = "Output"
TokenScores = Annotated[
    bool, opt(RESULT, "With --json: the score of every token.", "--token-scores", needs="json_output")
]
Alignment = Annotated[
    bool, opt(RESULT, "With --json: the attention of every token.", "--alignment", needs="json_output")
]
AttentionHead = Annotated[
    list[str] | None,
    opt(
        RESULT,
        "With --alignment or --coverage-penalty: take the attention of this head, such as cross.5.3. Repeatable.",
        metavar="HEAD",
        needs="alignment coverage_penalty",
    ),
]
TOKEN_VARIABLE = "HMC_TOKEN"
SERVER_VARIABLE = "HMC_SERVER"
SERVER = opt(WHERE, "Address of a running server.", metavar="HOST:PORT", envvar=SERVER_VARIABLE)
"""Commands that always need a server use `Annotated[str, SERVER]`."""
Server = Annotated[str | None, SERVER]
Token = Annotated[str | None, opt(WHERE, "Token, if the server requires one.", envvar=TOKEN_VARIABLE)]
TlsCa = Annotated[
    Path | None,
    opt(WHERE, "PEM file of the authorities to trust. With it the connection uses TLS.", "--tls-ca", metavar="FILE"),
]
DRY_RUN = "Check the inputs, say what would be done, and do nothing. Writes no file."
"""Help of `--dry-run`."""


@dataclass(frozen=True)
class Tls:
    """A connection with TLS, as options. None of them: a connection without."""

    ca: TlsCa = None
    cert: Annotated[
        Path | None,
        opt(
            WHERE,
            "PEM file of this client's certificate chain, for a server that asks for one (mutual TLS).",
            "--tls-cert",
            metavar="FILE",
        ),
    ] = None
    key: Annotated[
        Path | None, opt(WHERE, "PEM file of the key of --tls-cert, unencrypted.", "--tls-key", metavar="FILE")
    ] = None
    certificate_name: Annotated[
        str | None,
        opt(
            WHERE,
            "A name in the server's certificate, if the certificate does not hold the name of --server.",
            "--tls-name",
            metavar="NAME",
        ),
    ] = None


NO_TLS = Tls()


@dataclass(frozen=True)
class BackendOptions:
    """Where to translate, and at which level, as options."""

    server: Server = None
    bundle: Annotated[
        Path | None, opt(WHERE, "Bundle to load in this process, instead of a server.", metavar="DIR")
    ] = None
    level: Annotated[str | None, opt(LEVEL, "Name of the level. Default: the bundle's default level.")] = None
    max_heads: Annotated[int | None, opt(LEVEL, "Instead of --level: the best level with at most this many heads.")] = (
        None
    )
    max_bleu_drop: Annotated[
        float | None,
        opt(
            LEVEL,
            "Instead of --level: the fastest level that loses at most this much BLEU, as measured.",
            metavar="BLEU",
        ),
    ] = None
    latency_budget_ms: Annotated[
        int | None,
        opt(
            LEVEL,
            "Instead of --level: the best level that answers within this time, at the 95th percentile.",
            metavar="MS",
        ),
    ] = None
    auto: Annotated[
        bool,
        opt(
            LEVEL,
            "Instead of --level: the best level that the present load permits; `hmc serve --help` says how it is "
            "chosen.",
            "--auto",
        ),
    ] = False
    model: Annotated[
        str | None, opt(LEVEL, "Name of the model, if the server has several. Default: its first model.")
    ] = None
    source_language: Annotated[
        str | None,
        opt(LEVEL, "Language to translate from, such as en. Chooses the model.", "--from", metavar="LANGUAGE"),
    ] = None
    to: Annotated[
        str | None,
        opt(
            LEVEL,
            "Language to translate into, such as de or deu. Chooses the model, and the target token if the model has "
            "several languages.",
            metavar="LANGUAGE",
        ),
    ] = None
    device: Annotated[str, opt(WHERE, "With --bundle: device, one of auto, cpu, cuda and cuda:N.")] = "auto"
    threads: Annotated[int, opt(WHERE, "With --bundle: number of threads. 0: one for each physical core.")] = 0
    executor: Annotated[
        str,
        opt(
            WHERE,
            "With --bundle: program that runs the level. onnxruntime runs its graphs; native runs its step program "
            "in C, for int8 and fp32; reference runs the step program in NumPy, some hundred times slower, for "
            "comparison. auto takes native for int8 on a CPU, else onnxruntime.",
            metavar="NAME",
        ),
    ] = "auto"
    token: Token = None
    tls: Tls = NO_TLS
    timeout: Annotated[
        float | None, opt(WHERE, "With --server: seconds that the whole command may take. Default: no limit.")
    ] = None

    def selector(self) -> Selector:
        """The choice of a level. Raises InvalidRequestError if these options choose no valid selector."""
        from hmc.artifact.errors import InvalidRequestError
        from hmc.serving.requests.selectors import Selector

        choices = {
            "--level": self.level,
            "--max-heads": self.max_heads,
            "--max-bleu-drop": self.max_bleu_drop,
            "--latency-budget-ms": self.latency_budget_ms,
            "--auto": self.auto or None,
        }
        chosen = [option for option, value in choices.items() if value is not None]
        if len(chosen) > 1:
            raise InvalidRequestError(f"{' and '.join(chosen)} each choose the level: give one of them")
        return Selector(
            self.level, self.max_heads, self.max_bleu_drop, self.latency_budget_ms, self.auto, self.model,
            self.source_language, self.to,
        )  # fmt: skip

    def check_no_server(self, instead: str) -> None:
        """See `check_no_server_options`."""
        check_no_server_options(instead, token=self.token, tls=self.tls, timeout=self.timeout, model=self.model)


def chosen_server(server: str | None, bundle: Path | None, name: str = "--bundle DIR") -> str | None:
    """The server of a command that takes a server or a bundle; None: it is the bundle. name: of the bundle's option.

    A server in the environment may be meant for other commands, so a bundle that is given wins. Raises
    InvalidRequestError unless exactly one of the two is given.
    """
    from hmc.artifact.errors import InvalidRequestError

    if bundle is not None and server == os.environ.get(SERVER_VARIABLE):
        return None
    if (server is None) == (bundle is None):
        raise InvalidRequestError(f"give exactly one of {name} and --server HOST:PORT (or {SERVER_VARIABLE})")
    return server


def check_no_server_options(
    instead: str, *, token: str | None = None, tls: Tls = NO_TLS, timeout: float | None = None, model: str | None = None
) -> None:
    """Raises InvalidRequestError for an option that only a server reads, where `instead` is used, such as `--bundle`.

    A token in the environment may be meant for other commands, so it is no error.
    """
    from hmc.artifact.errors import InvalidRequestError

    given = {
        "--token": token is not None and token != os.environ.get(TOKEN_VARIABLE),
        "--tls-ca": tls.ca, "--tls-cert": tls.cert, "--tls-key": tls.key, "--tls-name": tls.certificate_name,
        "--timeout": timeout is not None,
    }  # fmt: skip
    if named := [name for name, value in given.items() if value]:
        is_or_are = "is" if len(named) == 1 else "are"
        raise InvalidRequestError(
            f"{', '.join(named)} {is_or_are} for a server: leave {'it' if len(named) == 1 else 'them'} out with "
            f"{instead}"
        )
    if model is not None:
        raise InvalidRequestError("--model needs --server: a bundle holds only one model")


def listed(text: str) -> tuple[str, ...]:
    """`a, b` → ("a", "b")."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def numbers(option: str, text: str, kind: type[N], example: str) -> tuple[N, ...]:
    """`1,32` → (1, 32). kind: int or float. Raises InvalidRequestError."""
    from hmc.artifact.errors import InvalidRequestError

    try:
        return tuple(kind(word) for word in listed(text))
    except ValueError as error:
        whole = "whole " if kind is int else ""
        raise InvalidRequestError(f"{option} {text!r}: write {whole}numbers with commas, e.g. {example}") from error


def parse_precisions(text: str) -> list[Precision]:
    """`fp32,int8` → a list. Raises InvalidRequestError."""
    from hmc.artifact.errors import InvalidRequestError
    from hmc.artifact.precisions import PRECISIONS, precision_named

    words = listed(text)
    if not words or not PRECISIONS.keys() >= set(words):
        names = ", ".join(PRECISIONS)
        raise InvalidRequestError(f"--precision {text!r}: choose {names}, or several with commas")
    return [precision_named(word) for word in words]


@contextmanager
def connected(server: str, token: str | None, tls: Tls) -> Iterator[Client]:
    """Connects a client for the block. The error about a wrong token says what to do. Raises as `Client`, and
    InvalidRequestError for a certificate without its key."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are raised; gRPC's own log would only clutter the terminal
    from hmc.artifact.errors import InvalidRequestError, UnauthenticatedError
    from hmc.serving.client import Client

    if (tls.cert is None) != (tls.key is None):
        raise InvalidRequestError("a client certificate needs both --tls-cert and --tls-key")
    pair = None if tls.cert is None or tls.key is None else (tls.cert, tls.key)
    with Client(server, token=token, tls_ca=tls.ca, tls_pair=pair, tls_name=tls.certificate_name) as client:
        try:
            yield client
        except UnauthenticatedError as error:
            raise UnauthenticatedError(f"{error}; give this server's token in HMC_TOKEN or with --token") from error

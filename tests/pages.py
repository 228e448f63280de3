"""Writes the pages of statuses, settings and executors, which are made from the code: `python -m tests.pages`."""

from __future__ import annotations

import json
from typing import Any

import grpc

from hmc.artifact.precisions import PRECISIONS
from hmc.engine.support import EXECUTORS, OPTIONS, PRECISIONS_OF
from hmc.serving.server.configuration import KEYS, option_of, variable_of
from hmc.serving.wire.status import HTTP_STATUS, MEANINGS, STATUSES_OF_CALLS, TABLE, WITH_A_LEVEL
from hmc.v1 import translation_pb2 as pb
from tests.guards.pages import DOCS

STATUSES_OF_TEXTS = WITH_A_LEVEL - {
    grpc.StatusCode.OK,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
}
"""Codes of the `Error` in the answer to one text of a stream."""
STATUSES = """# Statuses

This page lists every status that a call can end with, what it means and what to do. `make docs` writes it from
`serving/hmc/serving/wire/status.py`, and a test compares both.

The message of a status says what is wrong in English. The trailing metadata has `x-request-id`: the name that the
call sent under this key, or one that the server made. The server's log has it with every unexpected error.

With `INVALID_ARGUMENT`, the details of the status (`grpc-status-details-bin`) hold a `google.rpc.BadRequest`: each
field at fault with its path and a description. Python: `InvalidRequestError.violations`. In a stream, the `Error` of a
text has the same list as `violations`. For a request of more than 1 MiB only the first field is listed. If the list
does not fit into the trailers, its last entry says how many more fields there are.
"""
SETTINGS = """# Settings of `hmc serve`

`make docs` writes this page from the code. [Operations](operations.md#configure-a-server) says how to give settings,
and which one wins if a setting is given twice.

| key in a file | option | variable | default | meaning |
|---|---|---|---|---|
"""
EXECUTORS_PAGE = """# Executors

A level has ONNX graphs and, unless its weights have 4 bits, a [step
program](decisions/0037-step-programs-read-the-graphs-weights.md): what it computes, as some 40 operations a token. An
executor runs one of the two. `--executor` of `hmc translate`, `hmc score` and `hmc serve` names it.

- `onnxruntime` runs the graphs. It runs every level with every option on every device, also levels that were compiled
  before there were step programs.
- `native` runs the program in C, on a CPU, with greedy and beam search inside and many steps a call. Its answers equal
  the answers of `reference` bit for bit, on every processor.
- `reference` runs the program in NumPy, one sentence and one row at a time, some hundred times slower. It defines what
  a program means, to the bit. Other executors are compared with it.

Without this option, `native` runs the levels in int8 on a CPU, and `onnxruntime` runs all others. `hmc levels BUNDLE
--program LEVEL` prints a program.

## Who does what

*inside*: the executor does this itself. *host*: the executor gives each row's best tokens, and a search on the host
chooses among them. *no*: the executor refuses this. HMC never takes another executor by itself. `make docs` writes this
page from `engine/hmc/engine/support.py`, and a test compares both.

"""
EVERY_FORM = """Each executor runs every form of the model that a checkpoint can have: any number of heads, neurons and
layers, norms first or last, one vocabulary or two, and all else in `Architecture`. On CUDA, `onnxruntime` searches
inside for greedy and beam search, if a request sets no other options than a length penalty, limits of length and
`n_best`.
"""


def executors() -> str:
    """docs/executors.md: options and precisions × executors, from `hmc.engine.support`."""
    head = ["| | " + " | ".join(f"`{name}`" for name in EXECUTORS) + " |", "|---|" + "---|" * len(EXECUTORS)]
    rows = []
    for option, places in OPTIONS.items():
        rows.append(f"| {option} | " + " | ".join(places[name].value for name in EXECUTORS) + " |")
    for precision in PRECISIONS:
        runs = ["inside" if precision in PRECISIONS_OF[name] else "no" for name in EXECUTORS]
        rows.append(f"| {precision} | " + " | ".join(runs) + " |")
    return EXECUTORS_PAGE + "\n".join([*head, *rows, "", EVERY_FORM])


def statuses() -> str:
    """docs/statuses.md: every status, from `hmc.serving.wire.status`."""
    lines = [
        STATUSES,
        "| status | code | HTTP | when | what to do | send again | in Python |",
        "|---|---|---|---|---|---|---|",
    ]
    for code, meaning in MEANINGS.items():
        number: int = code.value[0]
        errors = ", ".join(f"`{kind.__name__}`" for kind, known in TABLE if known is code) or "–"
        lines.append(
            f"| `{code.name}` | {number} | {HTTP_STATUS[code]} | {meaning.when} | {meaning.what_to_do} "
            f"| {meaning.again} | {errors} |"
        )
    lines += ["", "## By call", "", "| call | statuses |", "|---|---|"]
    services: Any = pb.DESCRIPTOR.services_by_name
    for service in services.values():
        for method in service.methods:
            lines.append(f"| `{service.name}.{method.name}` | {_names(STATUSES_OF_CALLS[method.name])} |")
    lines.append(f"| one text of `TranslateStream` (`Error.code`) | {_names(STATUSES_OF_TEXTS)} |")
    return "\n".join(lines) + "\n"


def _names(codes: set[grpc.StatusCode]) -> str:
    return ", ".join(f"`{code.name}`" for code in MEANINGS if code in codes)


def settings() -> str:
    """docs/settings.md: every setting of `hmc serve`, from `ServeSettings`."""
    lines = []
    for key, field in KEYS.items():
        default = "–" if field.default in (None, ()) else f"`{json.dumps(field.default)}`".replace('"', "")
        meaning = " ".join((field.description or "").split()).replace("|", "\\|")
        lines.append(f"| `{key}` | `{option_of(key)}` | `{variable_of(key)}` | {default} | {meaning} |\n")
    return SETTINGS + "".join(lines)


if __name__ == "__main__":
    (DOCS / "statuses.md").write_text(statuses(), encoding="utf-8")
    (DOCS / "executors.md").write_text(executors(), encoding="utf-8")
    (DOCS / "settings.md").write_text(settings(), encoding="utf-8")

"""docs/commands.md: every command with its options, made from the parser.

`make docs` writes it: `python -m hmc.cli.reference docs/commands.md`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typer._click.core import Command, Context

HEAD = """# Commands

`make docs` writes this page from the code. `hmc COMMAND -h` shows the same.

| exit code | meaning |
|---|---|
| 0 | done; for a server: a signal stopped it |
| 1 | a bug, or an internal error of a server: please report it |
| 2 | a wrong command line, input or artifact: the same command fails again; the message says what to do |
| 3 | `hmc bench compare`: something became worse |
| 75 | the same command may succeed later: a server or the hub cannot be reached, is busy, or gave no answer in time |
| 130, 141, 143 | Ctrl-C (130), a closed pipe (141) or SIGTERM (143) ended it; long jobs say what they keep |

| variable | meaning |
|---|---|
| `HMC_SERVER` | `--server` of commands that ask a server. A command that gets a bundle does not use it. |
| `HMC_TOKEN` | `--token` of commands that ask a server; for `hmc serve`, the token that opens everything |
| `HMC_CACHE` | folder of packed weights, or `none` |
| `HMC_CONFIG` | `--config` of `hmc serve`; [settings](settings.md) lists the variable of each setting |

Every command has three more options. `-h` or `--help` shows the help. `-q` or `--quiet` prints only the result and
errors. `-v` or `--verbose` also logs what happens inside.
"""
EVERYWHERE = ("help", "quiet", "verbose")
"""Options that every command has, described once."""


def page() -> str:
    """The whole page in Markdown."""
    from typer.main import get_command

    from hmc.cli.main import build

    root: Any = get_command(build())
    rows = [row for name, command in _commands(root, "hmc", None) for row in _rows(name, command)]
    shared = {row for row in rows if rows.count(row) >= SEVERAL}
    lines = [HEAD, "## Options of several commands\n", "| option | meaning |", "|---|---|", *sorted(shared), ""]
    for name, command in _commands(root, "hmc", None):
        lines += _of_command(name, command, shared)
    return "\n".join(lines)


def _commands(group: Any, path: str, parent: Context | None) -> Iterator[tuple[str, Command]]:
    """Full name → command, for all commands below a group."""
    context = group.make_context(path, [], parent=parent, resilient_parsing=True)
    for name in group.list_commands(context):
        command: Any = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from _commands(command, f"{path} {name}", context)
        else:
            yield f"{path} {name}", command


SEVERAL = 4
"""An option with the same help in so many commands is described once."""


def _rows(name: str, command: Command) -> list[str]:
    """The options of a command, each as a line of a table; of `hmc serve` those that are no settings."""
    from hmc.serving.server.settings import ServerSettings

    context = command.make_context(name, [], resilient_parsing=True)
    params: list[Any] = [each for each in command.get_params(context) if each.name not in EVERYWHERE]
    found = []
    for each in params:
        record = each.get_help_record(context)
        if record is None or (name == "hmc serve" and each.name in ServerSettings.model_fields):
            continue
        names, meaning = (_one_line(text).replace("|", "\\|") for text in record)
        found.append(f"| `{re.sub(r' <[^>]*>', '', names)}` | {meaning} |")
    return found


def _of_command(name: str, command: Command, shared: set[str]) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    yield f"## {name}\n"
    yield f"{_one_line(command.help or '')}\n"
    yield f"    {name} {' '.join(command.collect_usage_pieces(context))}\n"
    rows = _rows(name, command)
    own = [row for row in rows if row not in shared]
    if own:
        yield "| argument or option | meaning |"
        yield "|---|---|"
        yield from own
        yield ""
    if name == "hmc serve":
        yield "And every [setting](settings.md).\n"
    if len(own) < len(rows):
        yield "Also " + ", ".join(row.split(" | ")[0].removeprefix("| ") for row in rows if row in shared) + ".\n"


def _one_line(text: str) -> str:
    """A text whose paragraphs are a line each."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")

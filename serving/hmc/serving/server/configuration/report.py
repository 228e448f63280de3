"""The settings in force, without secrets: as TOML for people, and as plain data for the log. And docs/settings.md:
`python -m hmc.serving.server.configuration.report > docs/settings.md`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hmc.serving.server.configuration.schema import Setting, schema
from hmc.serving.server.configuration.sources import DEFAULT, Configuration

HIDDEN = "(set, not shown)"


def shown(configuration: Configuration, *, defaults: bool = True) -> dict[str, Any]:
    """Key → value of every setting that has one, as plain data. defaults: also of those that nobody set."""
    found = {}
    for setting in schema():
        value = configuration.values[setting.key]
        if value is not None and (defaults or configuration.origins[setting.key] != DEFAULT):
            found[setting.key] = HIDDEN if setting.secret else plain(value)
    return found


def as_toml(configuration: Configuration) -> str:
    """A file with which `hmc serve --config` would serve in the same way, less the secrets. Comments say where each
    value comes from."""
    values, lines = shown(configuration), []
    for setting in schema():
        origin = configuration.origins[setting.key]
        if setting.key not in values:
            lines.append(f"# {setting.key} is not set")
        elif setting.secret:
            lines.append(f"# {setting.key} {HIDDEN}  # {origin}")
        else:
            lines.append(f"{setting.key} = {json.dumps(values[setting.key], ensure_ascii=False)}  # {origin}")
    return "\n".join(lines) + "\n"


def plain(value: Any) -> Any:
    """A value as JSON and TOML can hold it."""
    if isinstance(value, tuple):
        return list(map(plain, value))
    return str(value) if isinstance(value, Path) else value


HEAD = """# Settings of `hmc serve`

This page is made from the code: `make docs` writes it. [Operations](operations.md#configure-a-server) says how
settings are given and which of several wins.

| key in a file | option | variable | default | meaning |
|---|---|---|---|---|
"""


def page() -> str:
    """The whole page in Markdown."""
    return HEAD + "".join(map(_row, schema()))


def _row(setting: Setting) -> str:
    cells = (f"`{setting.key}`", f"`{setting.option}`", f"`{setting.variable}`", _default(setting.default))
    return f"| {' | '.join(cells)} | {setting.meaning.replace('|', chr(92) + '|')} |\n"


def _default(value: Any) -> str:
    return "–" if value is None or value == () else f"`{json.dumps(plain(value))}`".replace('"', "")


if __name__ == "__main__":
    sys.stdout.write(page())

"""The settings in force, without secrets: as TOML for people, and as plain data for the log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hmc.serving.server.configuration.schema import schema
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

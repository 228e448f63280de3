"""The settings of a server: the command line goes before the environment, that before a file, that before defaults."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmc.artifact.errors import InvalidRequestError, renamed
from hmc.artifact.git_lfs import why
from hmc.artifact.settings import ConfigurationError
from hmc.serving.server.settings import ServeSettings

PREFIX = "HMC_"
SECRETS = frozenset({"token"})
"""Keys whose values are never shown."""
BUNDLES = "bundles"
"""The key of what is served, which is the command's argument."""
KEYS = ServeSettings.model_fields
"""Key in a file → the setting."""


def variable_of(key: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + key.upper()


def option_of(key: str) -> str:
    """The option of a setting on the command line."""
    return "BUNDLE" if key == BUNDLES else "--" + key.replace("_", "-")


HIDDEN = "(set, not shown)"


def shown(configuration: Configuration, *, defaults: bool = True) -> dict[str, Any]:
    """Key → value of every setting that has one, as plain data. defaults: also of those that nobody set."""
    only = None if defaults else set(configuration.origins)
    values = configuration.settings.model_dump(mode="json", include=only, exclude_none=True)
    return values | dict.fromkeys(SECRETS & values.keys(), HIDDEN)


def as_toml(configuration: Configuration) -> str:
    """A file with which `hmc serve --config` would serve in the same way, less the secrets. Comments say where each
    value comes from."""
    values = shown(configuration)
    lines = []
    for key in KEYS:
        origin = configuration.origins.get(key, DEFAULT)
        if key not in values:
            lines.append(f"# {key} is not set")
        elif key in SECRETS:
            lines.append(f"# {key} {HIDDEN}  # {origin}")
        else:
            lines.append(f"{key} = {json.dumps(values[key], ensure_ascii=False)}  # {origin}")
    return "\n".join(lines) + "\n"


COMMAND_LINE = "command line"
DEFAULT = "default"
CONFIG = "HMC_CONFIG"
OTHER_VARIABLES = (CONFIG, "HMC_DATA", "HMC_CUDA_COUNTING", "HMC_CA", "HMC_BUNDLE")
"""Variables that are no settings of the server: also those of the example clients and of Compose."""
OF_KUBERNETES = re.compile(r"HMC_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)")
"""Variables that Kubernetes sets in every pod for a Service whose name begins with `hmc`."""


@dataclass(frozen=True)
class Configuration:
    """The settings in force, and where each comes from."""

    settings: ServeSettings
    origins: Mapping[str, str]
    """Key → where the value comes from: "command line", a variable or a file. Other settings have their defaults."""


def load(given: Mapping[str, Any], environ: Mapping[str, str], file: Path | None = None) -> Configuration:
    """Joins what the command line, the environment and a file say.

    given: key → value of the command line, without those that are None. file: a TOML file; None: the one that
    HMC_CONFIG names, if any.

    Raises InvalidRequestError for a file that cannot be read, a key or variable that is unknown (the message names the
    nearest that is known), and a value that is out of range.
    """
    _check_variables(environ)
    if file is None and environ.get(CONFIG):
        file = Path(environ[CONFIG])
    values = _read(file) if file else {}
    origins = dict.fromkeys(values, str(file))
    variables = {name.upper(): value for name, value in environ.items()}
    for key in KEYS:
        value = variables.get(variable_of(key))
        if value is not None and (value or key != "cache"):  # HMC_CACHE may be empty
            values[key] = value
            origins[key] = variable_of(key)
    values |= given
    origins |= dict.fromkeys(given, COMMAND_LINE)
    try:
        return Configuration(ServeSettings(**values), origins)
    except InvalidRequestError as error:
        places = {key: _place(key, origins[key], value) for key, value in values.items()}
        named = [each.named(places[each.field]) for each in error.violations]
        raise ConfigurationError("; ".join(named) or renamed(str(error), places)) from error


def _read(file: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequestError(f"config: cannot read {file}: {error.strerror}; check the path") from error
    except ValueError as error:  # neither UTF-8 nor TOML
        raise InvalidRequestError(f"config: {file} {why(file, f'is not TOML: {error}')}") from error
    for key in values:
        if key not in KEYS:
            raise InvalidRequestError(f"config: {file} has an unknown key {key!r}{_nearest(key)}")
    return values


def _check_variables(environ: Mapping[str, str]) -> None:
    known = set(map(variable_of, KEYS))
    ours = {name for name in environ if name.startswith(PREFIX) and not OF_KUBERNETES.fullmatch(name)}
    for name in sorted(ours - known - set(OTHER_VARIABLES)):
        if found := difflib.get_close_matches(name, known, 1, 0.8):
            raise InvalidRequestError(f"the environment has {name}, which is no setting: did you mean {found[0]}?")


def _nearest(key: str) -> str:
    found = difflib.get_close_matches(key.replace("-", "_").lower(), list(KEYS), 1, 0.6)
    return f": did you mean {found[0]!r}?" if found else "; docs/settings.md lists all keys"


def _place(key: str, origin: str, value: Any) -> str:
    if origin == COMMAND_LINE:
        return option_of(key)
    if origin.startswith(PREFIX):
        links = isinstance(value, str) and "://" in value
        return origin + (" (set by Kubernetes for a Service? set enableServiceLinks: false)" if links else "")
    return f"{origin}: {key}"

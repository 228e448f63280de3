"""The settings of a server: the command line goes before the environment, that before a file, that before defaults.

One schema, read off `ServerSettings`, has every setting with its key, type, default and meaning: a new field with a
docstring is a setting by itself.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import BeforeValidator, ValidationError, create_model
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from hmc.artifact.errors import InvalidRequestError, plain_problem, renamed
from hmc.artifact.git_lfs import why
from hmc.serving.server.settings import ServerSettings

PREFIX = "HMC_"
SECRETS = frozenset({"token"})
"""Keys whose values are never shown."""
SHORTER = {("max_texts_per_call",): "max_texts", ("auto", "max_pending"): "auto_pending"}
"""Field of the settings → its key, where that is not its name."""
BUNDLES = "bundles"
"""The key of what is served. It is no field of the settings, but the command's argument."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting."""

    key: str
    """Its name in a file."""
    path: tuple[str, ...]
    """Where it is in `ServerSettings`: a field, or the fields on the way to it. Empty for `bundles`."""
    type: Any
    """Its type, as annotated."""
    default: Any
    meaning: str

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return PREFIX + self.key.upper()

    @property
    def option(self) -> str:
        """Its option on the command line."""
        return "BUNDLE" if self.key == BUNDLES else "--" + self.key.replace("_", "-")

    @property
    def secret(self) -> bool:
        """Whether its value is never shown."""
        return self.key in SECRETS


@cache
def schema() -> tuple[Setting, ...]:
    """All settings, in the order of `ServerSettings`."""
    what = "What to serve: directories that `hmc compile` wrote."
    return (Setting(BUNDLES, (), tuple[str, ...], (), what), *_settings_of(ServerSettings, ()))


def _settings_of(kind: type, path: tuple[str, ...]) -> Iterator[Setting]:
    types = get_type_hints(kind)
    meanings = _docstrings(kind)
    for field in dataclasses.fields(kind):
        here = (*path, field.name)
        if dataclasses.is_dataclass(types[field.name]):
            yield from _settings_of(types[field.name], here)
            continue
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        key = SHORTER.get(here, "_".join(here))
        yield Setting(key, here, types[field.name], default, meanings.get(field.name, ""))


def _docstrings(kind: type) -> dict[str, str]:
    """Field → the string that stands after it in the source, on one line."""
    (body,) = (node.body for node in ast.parse(textwrap.dedent(inspect.getsource(kind))).body if hasattr(node, "body"))
    found = {}
    for field, after in pairwise(body):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


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
    values = shown(configuration)
    lines = []
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

    settings: ServerSettings
    bundles: tuple[str, ...]
    """What to serve, as the user wrote it."""
    values: Mapping[str, Any]
    """Key → value, for every setting."""
    origins: Mapping[str, str]
    """Key → where the value comes from: "command line", a variable, a file, or "default"."""


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
    by_key = {setting.key: setting for setting in schema()}
    layers: list[tuple[dict[str, Any], str]] = [
        (_of_file(file, by_key) if file else {}, str(file)),
        (_of_environment(environ), "environment"),
        (dict(given), COMMAND_LINE),
    ]
    values: dict[str, Any] = {}
    origins = dict.fromkeys(by_key, DEFAULT)
    for layer, origin in layers:
        values.update(layer)
        origins.update({k: by_key[k].variable if origin == "environment" else origin for k in layer})
    checked = _checked(values, origins)
    everything = {key: checked.get(key, setting.default) for key, setting in by_key.items()}
    try:
        settings = _settings(checked, by_key)
    except InvalidRequestError as error:
        places = {by_key[key].path[-1]: _place(key, origins[key], values[key]) for key in values if by_key[key].path}
        raise InvalidRequestError(renamed(str(error), places)) from error
    return Configuration(settings, everything[BUNDLES], everything, origins)


def _listed(value: Any) -> Any:
    """Lists may be written with commas."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _field(setting: Setting) -> tuple[Any, Any]:
    if "tuple" not in str(setting.type):
        return setting.type, setting.default
    optional = setting.default is None  # `all` then stands for no choice
    return (
        Annotated[setting.type, NoDecode, BeforeValidator(lambda v: None if optional and v == "all" else _listed(v))],
        setting.default,
    )


class _Base(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)  # `load` asks the other sources itself, to know where each value comes from


_Values: type[BaseSettings] = create_model("_Values", __base__=_Base, **{s.key: _field(s) for s in schema()})  # type: ignore[call-overload]


def _of_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    class Source(EnvSettingsSource):
        def _load_env_vars(self) -> Mapping[str, str | None]:
            empty_cache = {"HMC_CACHE"} if not environ.get("HMC_CACHE") else set()  # as if it were not set
            return {name.lower(): value for name, value in environ.items() if name not in empty_cache}

    return Source(_Values)()


def _of_file(file: Path, known: Iterable[str]) -> dict[str, Any]:
    try:
        with file.open("rb"):  # the source below takes a missing file for an empty one
            values = TomlConfigSettingsSource(_Values, file).toml_data
    except OSError as error:
        raise InvalidRequestError(f"config: cannot read {file}: {error.strerror}; check the path") from error
    except ValueError as error:  # neither UTF-8 nor TOML
        raise InvalidRequestError(f"config: {file} {why(file, f'is not TOML: {error}')}") from error
    for key in values:
        if key not in known:
            raise InvalidRequestError(f"config: {file} has an unknown key {key!r}{_nearest(key, known)}")
    return dict(values)


def _check_variables(environ: Mapping[str, str]) -> None:
    known = {setting.variable for setting in schema()}
    ours = {name for name in environ if name.startswith(PREFIX) and not OF_KUBERNETES.fullmatch(name)}
    for name in sorted(ours - known - set(OTHER_VARIABLES)):
        if found := difflib.get_close_matches(name, known, 1, 0.8):
            raise InvalidRequestError(f"the environment has {name}, which is no setting: did you mean {found[0]}?")


def _nearest(key: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(key.replace("-", "_").lower(), list(known), 1, 0.6)
    return f": did you mean {found[0]!r}?" if found else "; docs/settings.md lists all keys"


def _checked(values: dict[str, Any], origins: Mapping[str, str]) -> dict[str, Any]:
    """The values with their types. The error names the place of each wrong value, and shows no value."""
    try:
        model = _Values(**values)
    except ValidationError as error:
        problems = []
        for problem in error.errors(include_input=False):
            key = str(problem["loc"][0])
            problems.append(f"{_place(key, origins[key], values[key])}: {plain_problem(problem)}")
        raise InvalidRequestError("; ".join(problems)) from error
    return {key: getattr(model, key) for key in values}


def _place(key: str, origin: str, value: Any) -> str:
    if origin == COMMAND_LINE:
        return "--" + key.replace("_", "-")
    if origin.startswith(PREFIX):
        links = isinstance(value, str) and "://" in value
        return origin + (" (set by Kubernetes for a Service? set enableServiceLinks: false)" if links else "")
    return f"{origin}: {key}"


def _settings(checked: Mapping[str, Any], by_key: Mapping[str, Setting]) -> ServerSettings:
    """Puts the values where they are in the settings. Raises InvalidRequestError for a value out of range."""
    flat: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for key, value in checked.items():
        match by_key[key].path:
            case (name,):
                flat[name] = value
            case (outer, name):
                inner.setdefault(outer, {})[name] = value
    blank = ServerSettings()
    return ServerSettings(**flat, **{name: type(getattr(blank, name))(**fields) for name, fields in inner.items()})

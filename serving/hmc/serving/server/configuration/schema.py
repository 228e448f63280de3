"""The schema: every setting with its key, type, default and meaning, read off `ServerSettings`.

A new field of `ServerSettings` with a docstring is a setting by itself.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any, get_type_hints

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
    types, meanings = get_type_hints(kind), _docstrings(kind)
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

"""YAML as plain text: every scalar stays a string, so `yes`, `1:30` or `null` can be a word of a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hmc.artifact.distribution import how_to_install
from hmc.artifact.errors import FailedPreconditionError, HmcError

Value = str | list[Any] | dict[str, Any]
"""A scalar as it is written, a sequence or a mapping."""


def parse_yaml(text: str, name: str) -> dict[str, Value]:
    """The mapping in a YAML text. name: of its file, for messages. No tag makes an object.

    Raises HmcError if it is no mapping, holds one key twice or refers to itself, and FailedPreconditionError where
    PyYAML is not installed.
    """
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise FailedPreconditionError(f"{name} is YAML, which needs PyYAML: {how_to_install('compile')}") from error
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        node = yaml.compose(text, Loader=loader)
        value = _plain(node, name, 0)
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        where = f" (line {place.line + 1})" if place else ""
        raise HmcError(f"{name} is not YAML{where}: {getattr(error, 'problem', None) or error}") from error
    if not isinstance(value, dict):
        raise HmcError(f"{name} must be one mapping of YAML")
    return value


def _plain(node: Any, name: str, depth: int) -> Value:
    """The value of a node. Depth is bounded, so that a node within itself ends."""
    if depth > 8:
        raise HmcError(f"{name} nests deeper than any file of Marian")
    if node is None:
        return {}
    if node.id == "scalar":
        return str(node.value)
    if node.id == "sequence":
        return [_plain(each, name, depth + 1) for each in node.value]
    found: dict[str, Value] = {}
    for key, value in node.value:
        if key.id != "scalar":
            raise HmcError(f"{name}, line {key.start_mark.line + 1}: a key must be a word")
        if key.value in found:
            raise HmcError(f"{name}, line {key.start_mark.line + 1}: {key.value!r} is there twice")
        found[str(key.value)] = _plain(value, name, depth + 1)
    return found


def text_of(options: Mapping[str, Value], name: str, default: str = "") -> str:
    """A scalar option; `default` where it is missing. Raises HmcError for a list or mapping."""
    value = options.get(name, default)
    if not isinstance(value, str):
        raise HmcError(f"{name} must be one value")
    return value


def is_true(options: Mapping[str, Value], name: str) -> bool:
    """Whether a boolean option is set; a missing one is not."""
    return text_of(options, name, "false").lower() in ("true", "yes", "on")

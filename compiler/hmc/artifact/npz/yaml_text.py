"""YAML as plain text: every scalar stays a string, so `yes`, `1:30` or `null` can be a word of a vocabulary."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hmc.artifact.distribution import how_to_install
from hmc.artifact.errors import FailedPreconditionError, HmcError
from hmc.artifact.git_lfs import refuse_pointer

Value = str | list[Any] | dict[str, Any]
"""A scalar as it is written, a sequence or a mapping."""
DEEPEST = 8
"""Sequences and mappings within each other."""
FOREIGN = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that PyYAML refuses, takes for ends of lines or drops. Vocabularies hold them as pieces."""
STAND_INS = 0x10FFFD - 0xFFFF
"""Added to such a character: a place in the last plane for private use, or right before it, stands for it while a text
is parsed."""
STOOD_IN = re.compile("[\U000fffff-\U0010fffd]")


def utf8_text(path: Path) -> str:
    """The text of a file, without a byte order mark. Raises HmcError for a pointer of Git LFS, and for one that is not
    UTF-8."""
    refuse_pointer(path, path.name)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise HmcError(f"{path.name} is not UTF-8 (byte {error.start})") from error


def parse_yaml(text: str, name: str) -> dict[str, Value]:
    """The mapping in a YAML text. name: of its file, for messages. No tag makes an object.

    Raises HmcError if it is no mapping, holds one key twice, has an alias or nests too deep, and
    FailedPreconditionError where PyYAML is not installed.
    """
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise FailedPreconditionError(f"{name} is YAML, which needs PyYAML: {how_to_install('compile')}") from error
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    if STOOD_IN.search(text):
        raise HmcError(f"{name} holds characters of the last plane for private use, which no file of Marian has")
    plain = FOREIGN.sub(lambda match: chr(ord(match[0]) + STAND_INS), text)
    try:
        value = _document(yaml.parse(plain, Loader=loader), name)
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        where = f" (line {place.line + 1})" if place else ""
        raise HmcError(f"{name} is not YAML{where}: {getattr(error, 'problem', None) or error}") from error
    if not isinstance(value, dict):
        raise HmcError(f"{name} must be one mapping of YAML")
    return value


def _document(events: Iterator[Any], name: str) -> Value:
    """The only document of a text; {} if there is none."""
    value: Value = {}
    documents = 0
    for event in events:
        kind = type(event).__name__
        if kind == "DocumentStartEvent":
            documents += 1
        elif kind not in ("StreamStartEvent", "StreamEndEvent", "DocumentEndEvent"):
            value = _value(event, events, name)
    if documents > 1:
        raise HmcError(f"{name} holds {documents} documents of YAML; it must be one mapping")
    return value


def _value(event: Any, events: Iterator[Any], name: str, depth: int = 0) -> Value:
    """The value that begins with `event`; the rest of it is taken from `events`.

    Depth is bounded, and an alias is refused: a few aliases can stand for any number of values.
    """
    kind = type(event).__name__
    line = event.start_mark.line + 1
    if kind == "ScalarEvent":
        return _restored(event.value)
    if kind == "AliasEvent":
        raise HmcError(
            f"{name}, line {line}: an alias (*{event.anchor}), which no file of Marian has; write its value out instead"
        )
    if depth >= DEEPEST:
        raise HmcError(f"{name}, line {line}: nests deeper than any file of Marian; copy the file again")
    if kind == "SequenceStartEvent":
        items: list[Any] = []
        while type(item := next(events)).__name__ != "SequenceEndEvent":
            items.append(_value(item, events, name, depth + 1))
        return items
    mapping: dict[str, Value] = {}
    while type(key := next(events)).__name__ != "MappingEndEvent":
        where = f"{name}, line {key.start_mark.line + 1}"
        if type(key).__name__ != "ScalarEvent":
            raise HmcError(f"{where}: a key must be a word")
        word = _restored(key.value)
        if word in mapping:
            raise HmcError(f"{where}: {word!r} is given twice")
        mapping[word] = _value(next(events), events, name, depth + 1)
    return mapping


def _restored(text: str) -> str:
    return STOOD_IN.sub(lambda match: chr(ord(match[0]) - STAND_INS), text)


def text_of(options: Mapping[str, Value], name: str, default: str = "") -> str:
    """A scalar option; `default` where it is missing. Raises HmcError for a list or mapping."""
    value = options.get(name, default)
    if not isinstance(value, str):
        raise HmcError(f"{name} must be one value")
    return value


def is_true(options: Mapping[str, Value], name: str) -> bool:
    """Whether a boolean option is set; a missing one is not."""
    return text_of(options, name, "false").lower() in ("true", "yes", "on")

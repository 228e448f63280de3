"""Checks requests against the rules of their fields in the `.proto`, and says what is wrong in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import protovalidate

from buf.validate import validate_pb2
from hmc.artifact.errors import InvalidRequestError, Violation

if TYPE_CHECKING:
    from google.protobuf.message import Message

MAX_LISTED_BYTES = 2**20
"""Largest request whose violations are all listed; of a larger one only the first. A list of a million bad items would
otherwise hold up all other calls."""
_validator = protovalidate.Validator()  # compiles the rules of a message once


def check_request(request: Message) -> None:
    """Raises InvalidRequestError with every value of `request` that breaks a rule of its field.

    Of a request larger than `MAX_LISTED_BYTES`, it names the first one only.
    """
    found = _validator.collect_violations(request, fail_fast=request.ByteSize() > MAX_LISTED_BYTES)
    if not found:
        return
    violations: dict[str, Violation] = {}  # field → its first violation
    for one in found:
        violation = _violation(request.DESCRIPTOR, one)
        violations.setdefault(violation.field, violation)
    raise invalid_request(list(violations.values()))


def invalid_request(violations: list[Violation]) -> InvalidRequestError:
    """The error of a request with these violations. Its message has all their descriptions."""
    descriptions = [violation.description for violation in violations]
    if len(descriptions) == 1:
        return InvalidRequestError(descriptions[0], violations)
    return InvalidRequestError(f"{len(descriptions)} values are at fault: " + "; ".join(descriptions), violations)


def _violation(message: Any, found: protovalidate.Violation) -> Violation:
    rule, text = found.proto.rule_id, found.proto.message
    elements = found.proto.field.elements if found.proto.field else []
    field, path = None, ""
    for element in elements:
        field = message.fields_by_number[element.field_number]
        index = element.subscript
        path += ("." if path else "") + field.name + (f"[{index.value}]" if index and index.field == "index" else "")
        message = field.message_type or message
    if field is None or field.message_type is not None:  # a rule of a message: its id is the path of the field at fault
        return Violation(f"{path}.{rule}" if path else rule, text)
    return Violation(path, f"{path} {_problem(field, rule, text, found.field_value, path.endswith(']'))}")


def _problem(field: Any, rule: str, text: str, value: Any, is_item: bool) -> str:
    """What is wrong with the value of a field. text: the rule's own message, for rules written for one field."""
    kind, _, name = rule.partition(".")
    rules: Any = field.GetOptions().Extensions[validate_pb2.field]
    if is_item:
        rules = rules.repeated.items
    limits: Any = getattr(rules, kind, None)
    match kind, name:
        case "string", "max_len":
            return f"has {len(value)} characters: give at most {limits.max_len}"
        case "string", "max_bytes":
            return f"is longer than {limits.max_bytes} bytes: split it or shorten it"
        case ("string", "min_len") | ("repeated", "min_items"):
            return (
                f"is empty: send at least one {field.name.removesuffix('s')}"
                if kind == "repeated"
                else "is empty: give one"
            )
        case "repeated", "max_items":
            return f"has {len(value)} items: give at most {limits.max_items}"
        case "enum", _:
            allowed = [one.name for one in field.enum_type.values if one.number not in (0, *limits.not_in)]
            return f"{value}: choose {' or '.join(allowed)}"
        case (("int32" | "int64" | "double"), _):
            return f"{value:g}: choose {_range(limits)}" if kind == "double" else f"{value}: choose {_range(limits)}"
        case _:
            return text


def _range(limits: Any) -> str:
    if limits.HasField("lte"):
        above = limits.HasField("gt")
        return f"more than {limits.gt:g}, up to {limits.lte:g}" if above else f"{limits.gte:g} to {limits.lte:g}"
    return f"{limits.gte:g} or more"

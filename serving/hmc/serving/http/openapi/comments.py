"""The comments of the protocol, which descriptors do not have."""

from __future__ import annotations

import re
from pathlib import Path

NAMED = re.compile(r"^(?:message|enum|service|oneof)\s+(\w+)|^rpc\s+(\w+)|^(?:[\w.<>, ]+\s)?(\w+)\s*=\s*\d+")


def comments_of(proto: Path) -> dict[str, str]:
    """The comment above each message, field, enum, value, service and method, by its dotted name without the package.

    Fields of a `oneof` are named as fields of its message.
    """
    found: dict[str, str] = {}
    scope: list[str] = []  # what each open brace belongs to; empty for those that name nothing
    comment: list[str] = []
    for line in map(str.strip, proto.read_text(encoding="utf-8").splitlines()):
        if line.startswith("//"):
            comment.append(line.removeprefix("//").strip())
            continue
        match = NAMED.match(line)
        name = next(filter(None, match.groups()), "") if match else ""
        if name and comment:
            found[".".join([*filter(None, scope), name])] = " ".join(comment)
        comment = []
        is_scope = line.startswith(("message", "enum", "service"))
        scope.extend([name if is_scope else ""] * line.count("{"))
        closed = line.count("}")
        del scope[len(scope) - closed :]
    return found

"""The OpenAPI 3.1 document, made from the protocol's descriptors, and from the comments of its `.proto` file, which
descriptors do not have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from hmc.artifact.distribution import VERSION
from hmc.serving.http.bodies import JSON
from hmc.serving.http.call import MAX_TIMEOUT_MS
from hmc.serving.http.exchange import EVENTS, LINES
from hmc.serving.http.openapi_paths import OTHER_PATHS, OTHER_SCHEMAS, Json, errors_of
from hmc.serving.http.twins import Twin
from hmc.serving.wire.status import STATUSES_OF_CALLS
from hmc.v1 import translation_pb2 as pb

INTEGERS: dict[int, Json] = {
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32", "minimum": -(2**31), "maximum": 2**31 - 1},
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
    FieldDescriptor.TYPE_INT64: {"type": ["string", "integer"], "format": "int64", "pattern": r"^-?[0-9]{1,18}$"},
}
SCALARS: dict[int, Json] = {
    FieldDescriptor.TYPE_DOUBLE: {"type": "number", "format": "double"},
    FieldDescriptor.TYPE_FLOAT: {"type": "number", "format": "float"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    **INTEGERS,
}
TIMEOUT_HEADER: Json = {
    "name": "X-Timeout-Ms",
    "in": "header",
    "description": "The call is given up after so many milliseconds, with 504.",
    "schema": {"type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT_MS},
}
NAMED = re.compile(r"^(?:message|enum|service|oneof)\s+(\w+)|^rpc\s+(\w+)|^(?:[\w.<>, ]+\s)?(\w+)\s*=\s*\d+")


def openapi_document(twins: Sequence[Twin], needs_token: bool) -> Json:
    """The document of a server with these RPCs. needs_token: whether calls need a token."""
    comments = comments_of(Path(pb.__file__).with_name("translation.proto"))
    schemas = _Schemas(comments)
    paths: dict[str, Json] = {}
    for twin in twins:
        paths.setdefault(twin.path, {})[twin.verb.lower()] = _operation(twin, schemas, comments)
    for path, operations in OTHER_PATHS.items():
        paths[path] = dict(operations)
    document: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "HMC",
            "version": VERSION,
            "description": "Translation at a pruning level that each request may choose. The paths below `/v1` are "
            "the RPCs of `hmc.v1` in protobuf's JSON: fields may also have their names of the .proto file, 64-bit "
            "integers are strings, and an unknown field is refused.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": {**OTHER_SCHEMAS, **schemas.made}},
    }
    if needs_token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in paths.items():
            if not path.startswith(("/health", "/frontend")):
                for operation in operations.values():
                    operation["security"] = [{"token": []}]
    return document


def _operation(twin: Twin, schemas: _Schemas, comments: dict[str, str]) -> Json:
    method = twin.method
    admin = twin.path.startswith("/v1/admin/")
    text = comments.get(f"{method.containing_service.name}.{method.name}", "")
    operation: Json = {
        "operationId": method.name,
        "summary": text.partition(". ")[0].rstrip("."),
        "description": text,
        "tags": ["administration" if admin else "translation"],
        "parameters": [TIMEOUT_HEADER],
        "responses": {"200": _answer(twin, schemas), **errors_of(STATUSES_OF_CALLS[method.name], twin.verb == "POST")},
    }
    if twin.verb == "GET":
        operation["parameters"] = [
            *(
                {"name": f.json_name, "in": "query", "schema": schemas.field(f), "description": schemas.text(f)}
                for f in method.input_type.fields
            ),
            TIMEOUT_HEADER,
        ]
        return operation
    reference = schemas.reference(method.input_type)
    if twin.streams_requests:
        about = "One request a line, in JSON; see the schema of the request's name."
        content: Json = {LINES: {"schema": {"type": "string", "description": about}}}
    else:
        content = {JSON: {"schema": reference}}
    operation["requestBody"] = {"required": True, "content": content}
    return operation


def _answer(twin: Twin, schemas: _Schemas) -> Json:
    kind = twin.method.output_type
    reference = schemas.reference(kind)
    if twin.streams_requests:
        return {
            "description": 'One answer a line. An error that ends the stream is the last line, `{"error": …}`.',
            "content": {LINES: {"schema": {"type": "string"}}},
        }
    if not twin.streams_answers:
        return {"description": f"A {kind.name}.", "content": {JSON: {"schema": reference}}}
    return {
        "description": f"With `Accept: {EVENTS}`: events with a {kind.name} each as data, then an event `end`, or an "
        "event `error`. Otherwise the whole translation at once.",
        "content": {
            JSON: {"schema": schemas.reference(pb.TranslateResponse.DESCRIPTOR)},
            EVENTS: {"schema": {"type": "string"}},
        },
    }


class _Schemas:
    """The schemas of messages, made when they are first referred to."""

    def __init__(self, comments: dict[str, str]) -> None:
        self.made: dict[str, Json] = {}
        self._comments = comments

    def reference(self, kind: Any) -> Json:
        """A reference to the schema of a message."""
        if kind.name not in self.made:
            self.made[kind.name] = {}  # so that a message may contain itself
            self.made[kind.name] = self._message(kind)
        return {"$ref": f"#/components/schemas/{kind.name}"}

    def text(self, field: FieldDescriptor) -> str:
        """The comment of a field."""
        owner: Any = field.containing_type
        return self._comments.get(f"{owner.name}.{field.name}", "")

    def field(self, field: FieldDescriptor) -> Json:
        """The schema of one value of a field, or of all if it is repeated."""
        one: Json
        if field.message_type is not None:
            one = self.reference(field.message_type)
        elif field.enum_type is not None:
            one = {"type": "string", "enum": [value.name for value in field.enum_type.values]}
        else:
            one = dict(SCALARS[field.type])
        return {"type": "array", "items": one} if field.is_repeated else one

    def _message(self, kind: Any) -> Json:
        made: Json = {
            "type": "object",
            "properties": {f.json_name: {**self.field(f), "description": self.text(f)} for f in kind.fields},
            "additionalProperties": False,
        }
        text = self._comments.get(kind.name, "")
        groups = [one for one in kind.oneofs if len(one.fields) > 1]
        for group in groups:
            names = ", ".join(f.json_name for f in group.fields)
            text = f"{text} At most one of {names}.".strip()
        return {**made, "description": text}


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

"""Writes the OpenAPI 3.1 document that the HTTP port serves: `python -m tests.openapi`.

It is made from the protocol's descriptors, and from the comments of its `.proto` file, which descriptors do not have.
Written by hand are the errors of an operation, and the paths that are no RPCs. The server adds its version and whether
calls need a token, and leaves out what it does not have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor

from hmc.artifact.storage.files import write_whole
from hmc.serving.http.app import OPENAPI
from hmc.serving.http.bodies import FORM, JSON
from hmc.serving.http.call import MAX_TIMEOUT_MS
from hmc.serving.http.exchange import EVENTS, LINES
from hmc.serving.http.twins import Twin, twins
from hmc.serving.wire.status import EVERY_CALL, HTTP_STATUS, MEANINGS, STATUSES_OF_CALLS
from hmc.v1 import translation_pb2 as pb

Json = dict[str, Any]
NO_ANSWER = (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED)
"""Statuses that are no errors, or that nobody reads: a caller who cancels has closed the connection."""
OF_BODIES = {
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is declared as another type.",
}
RETRY_AFTER: Json = {
    "Retry-After": {"description": "Seconds after which to try again.", "schema": {"type": "integer", "minimum": 1}}
}


def errors_of(statuses: Iterable[grpc.StatusCode], has_body: bool, schema: str = "Failure") -> Json:
    """The error answers of an operation. statuses: the statuses that its call can end with. has_body: whether it reads
    a body.

    schema: the name of the errors' schema.
    """
    texts: dict[int, list[str]] = {}
    for code, meaning in MEANINGS.items():
        if code in statuses and code not in NO_ANSWER:
            texts.setdefault(HTTP_STATUS[code], []).append(f"{code.name}: {meaning.when}")
    if has_body:
        for status, text in OF_BODIES.items():
            texts[status] = [text]
    return {str(status): _error(status, " ".join(found), schema) for status, found in sorted(texts.items())}


def _error(status: int, description: str, schema: str) -> Json:
    content = {JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    answer: Json = {"description": description, "content": content}
    if status in (429, 503):
        answer["headers"] = RETRY_AFTER
    return answer


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _described(schema: Json, description: str) -> Json:
    return {"description": description, "content": {JSON: {"schema": schema}}}


def _body(name: str) -> Json:
    return {"required": True, "content": {JSON: {"schema": _ref(name)}, FORM: {"schema": _ref(name)}}}


LIBRE_ERRORS = errors_of(STATUSES_OF_CALLS["Translate"] - {grpc.StatusCode.UNAUTHENTICATED}, True, "LibreFailure")
"""A missing or wrong key is 403 in LibreTranslate's API."""
ONE_OR_MORE_TEXTS: Json = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
API_KEY: Json = {"type": "string", "description": "The server's token, if it has one."}
DETECTED: Json = {
    "type": "object",
    "required": ["language", "confidence"],
    "properties": {
        "language": {"type": "string"},
        "confidence": {"type": "number", "description": "Always 0: the language is declared, not detected."},
    },
}
OTHER_SCHEMAS: dict[str, Json] = {
    "Failure": {
        "type": "object",
        "required": ["code", "message", "details"],
        "properties": {
            "code": {"type": "string", "description": "The name of a gRPC status, such as INVALID_ARGUMENT."},
            "message": {"type": "string", "description": "The problem and what to do about it, in English."},
            "details": {"type": "array", "items": {"type": "object"}, "description": "Messages of google.rpc."},
        },
    },
    "LibreFailure": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
    "LibreTranslate": {
        "type": "object",
        "required": ["q", "source", "target"],
        "properties": {
            "q": {**ONE_OR_MORE_TEXTS, "description": "The text, or a list of texts."},
            "source": {"type": "string", "description": "A language code, or auto: the first model that fits."},
            "target": {"type": "string", "description": "A language code."},
            "format": {"enum": ["text", "html"], "description": "html: entities are read; tags are refused."},
            "alternatives": {"type": "integer", "minimum": 0, "maximum": 15},
            "api_key": API_KEY,
        },
    },
    "LibreTranslated": {
        "type": "object",
        "required": ["translatedText"],
        "properties": {
            "translatedText": ONE_OR_MORE_TEXTS,
            "alternatives": {"type": "array"},
            "detectedLanguage": {"anyOf": [DETECTED, {"type": "array", "items": DETECTED}]},
        },
    },
    "LibreDetect": {"type": "object", "required": ["q"], "properties": {"q": ONE_OR_MORE_TEXTS, "api_key": API_KEY}},
    "Ready": {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}},
}
LANGUAGE: Json = {
    "type": "object",
    "required": ["code", "name", "targets"],
    "properties": {
        "code": {"type": "string"},
        "name": {"type": "string"},
        "targets": {"type": "array", "items": {"type": "string"}},
    },
}


def _libre(verb: str, summary: str, answer: Json, body: str = "") -> Json:
    operation: Json = {
        "summary": summary,
        "tags": ["LibreTranslate"],
        "responses": {"200": _described(answer, summary), **LIBRE_ERRORS},
    }
    if body:
        operation["requestBody"] = _body(body)
    return {verb: operation}


def _health(summary: str) -> Json:
    answers: Json = {
        "200": _described(_ref("Ready"), "Yes."),
        "503": _described(_ref("Ready"), "No; `error` says why."),
    }
    return {"get": {"summary": summary, "tags": ["operation"], "responses": answers}}


OTHER_PATHS: dict[str, Json] = {
    "/translate": _libre("post", "Translate as LibreTranslate does", _ref("LibreTranslated"), "LibreTranslate"),
    "/detect": _libre(
        "post",
        "The declared source languages; the text is not examined",
        {"type": "array", "items": DETECTED},
        "LibreDetect",
    ),
    "/languages": _libre("get", "The languages of the server's models", {"type": "array", "items": LANGUAGE}),
    "/frontend/settings": _libre("get", "What a front end of LibreTranslate asks first", {"type": "object"}),
    "/health": _health("Whether the server serves, as LibreTranslate says it"),
    "/health/live": _health("Whether the process answers"),
    "/health/ready": _health("Whether the server serves: levels are loaded, and it does not drain"),
    "/metrics": {
        "get": {
            "summary": "Metrics in the format of Prometheus or OpenMetrics",
            "tags": ["operation"],
            "responses": {
                "200": {
                    "description": "Metrics.",
                    "content": {
                        "text/plain": {"schema": {"type": "string"}},
                        "application/openmetrics-text": {"schema": {"type": "string"}},
                    },
                },
                **errors_of(EVERY_CALL, False),
            },
        }
    },
}


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


def openapi_document() -> Json:
    """The document of a server with all RPCs."""
    comments = comments_of(Path(pb.__file__).with_name("translation.proto"))
    schemas = _Schemas(comments)
    paths: dict[str, Json] = {}
    for twin in twins():
        paths.setdefault(twin.path, {})[twin.verb.lower()] = _operation(twin, schemas, comments)
    for path, operations in OTHER_PATHS.items():
        paths[path] = dict(operations)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "HMC",
            "description": "Translation at a pruning level that each request may choose. The paths below `/v1` are "
            "the RPCs of `hmc.v1` in protobuf's JSON: fields may also have their names of the .proto file, 64-bit "
            "integers are strings, and an unknown field is refused.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": {**OTHER_SCHEMAS, **schemas.made}},
    }


def written() -> str:
    """The file of the document."""
    return json.dumps(openapi_document(), indent=1, ensure_ascii=False) + "\n"


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


if __name__ == "__main__":
    write_whole(OPENAPI, written())

"""The parts of the OpenAPI document that are not made from descriptors: errors of an operation, and the paths that are
no RPCs, which are LibreTranslate's API, metrics and health.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc

from hmc.serving.http.bodies import FORM, JSON
from hmc.serving.wire.status import EVERY_CALL, HTTP_STATUS, MEANINGS, STATUSES_OF_CALLS

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
    """The error answers of an operation. statuses: those its call can end with. has_body: whether it reads a body.

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


def _answer(schema: Json, description: str) -> Json:
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
        "responses": {"200": _answer(answer, summary), **LIBRE_ERRORS},
    }
    if body:
        operation["requestBody"] = _body(body)
    return {verb: operation}


def _health(summary: str) -> Json:
    answers: Json = {"200": _answer(_ref("Ready"), "Yes."), "503": _answer(_ref("Ready"), "No; `error` says why.")}
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

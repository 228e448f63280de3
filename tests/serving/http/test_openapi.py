"""The OpenAPI document is valid, and the server keeps what it says: schemathesis makes the requests.

`HMC_FUZZ` is the number of requests for each operation and mode; the default keeps the test short.
"""

from __future__ import annotations

import os
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

REQUESTS = int(os.environ.get("HMC_FUZZ", "4"))


@schemathesis.serializer("application/x-ndjson")
def lines(_context: Any, value: Any) -> bytes:
    """The body of a stream: any text, as JSON lines have no schema in OpenAPI 3.1."""
    return str(value).encode("utf-8", "replace")


EXCLUDED: list[Any] = [
    positive_data_acceptance,  # values may fit the schema and not each other, such as two selectors
    negative_data_rejection,  # protobuf's JSON takes more than the schema says: null, numbers in strings
    not_a_server_error,  # a time of 1 ms ends with 504, and a method of another server with 501
]
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


def test_no_request_made_from_the_document_breaks_the_server(url: str) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    statuses: set[int] = set()
    operations: list[Any] = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    for operation in operations:
        for mode in MODES:
            if mode is GenerationMode.NEGATIVE and (not operation.body or operation.path == "/v1/stream"):
                continue  # nothing to get wrong: extra parameters are allowed, and a stream may be any text

            @settings(
                max_examples=REQUESTS,
                deadline=None,
                derandomize=REQUESTS < 100,
                database=None,
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def send(case: Any) -> None:
                response = case.call(timeout=30)
                statuses.add(response.status_code)
                assert response.status_code not in (500, 502), response.text
                case.validate_response(response, excluded_checks=EXCLUDED)

            send()
    assert len(operations) >= 18
    assert {200, 400} <= statuses
    assert httpx.get(f"{url}/health/ready").status_code == 200


def test_a_lying_document_is_noticed(url: str) -> None:
    document = httpx.get(f"{url}/openapi.json").json()
    properties = document["components"]["schemas"]["ListLevelsResponse"]["properties"]
    properties["bundleVersion"] = {"type": "integer"}
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=url)
    case = schema["/v1/levels"]["GET"].Case()
    with pytest.raises(schemathesis.core.failures.FailureGroup, match="Response violates schema"):
        case.call_and_validate(timeout=30)


def test_comments_of_the_protocol_are_in_it(url: str) -> None:
    document = httpx.get(f"{url}/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert schemas["TranslateRequest"]["properties"]["texts"]["description"].startswith("The texts, at least one.")
    assert schemas["LevelSelector"]["properties"]["maxHeads"]["description"].startswith("The level with the most open")
    without = [
        f"{name}.{field}"
        for name, schema in schemas.items()
        for field, found in schema.get("properties", {}).items()
        if not found.get("description") and name.startswith(("Translat", "Level", "Score", "Segment", "Decoding"))
    ]
    assert without == []
    assert "security" not in document["paths"]["/v1/translate"]["post"]

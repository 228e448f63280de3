"""The OpenAPI document: what it says of the protocol, and that a lie in it would be noticed."""

from __future__ import annotations

import httpx
import pytest
import schemathesis
from tests import openapi

from hmc.serving.http.app import OPENAPI


def test_the_committed_document_is_what_the_protocol_gives() -> None:
    assert OPENAPI.read_text(encoding="utf-8") == openapi.written(), "run `make docs`"


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
    assert schemas["LevelSelector"]["properties"]["maxHeads"]["description"].startswith("The best level of those with")
    without = [
        f"{name}.{field}"
        for name, schema in schemas.items()
        for field, found in schema.get("properties", {}).items()
        if not found.get("description") and name.startswith(("Translat", "Level", "Score", "Segment", "Decoding"))
    ]
    assert without == []
    assert "security" not in document["paths"]["/v1/translate"]["post"]

"""LibreTranslate's own Python client, and what other clients of it send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI
from tests.serving.fakes import FakeFactory
from tests.serving.http.conftest import serving, url_of

from hmc.serving import Translator
from hmc.serving.server.access.tokens import line_of
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

PAIR = {"source": "en", "target": "de"}


@pytest.fixture(scope="module")
def real_url(lively_bundle: Path) -> Iterator[str]:
    settings = ServerSettings(port=0, http_port=0, levels=("full",), device="cpu", threads=1)
    with BackgroundServer(lively_bundle, settings) as running:
        yield url_of(running)


def test_its_own_client_on_a_real_model(real_url: str, lively_bundle: Path) -> None:
    client = LibreTranslateAPI(real_url)
    with Translator(lively_bundle, "full", device="cpu", threads=1) as translator:
        expected = translator.translate(["A dog runs."])[0].text
    assert client.translate("A dog runs.", "en", "de") == expected != ""
    assert client.languages() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    assert client.detect("Ein Hund.") == [{"language": "en", "confidence": 0.0}]


def test_its_own_client_sends_the_token_as_api_key(tmp_path: Path, factory: FakeFactory) -> None:
    with serving(tmp_path, factory, token="secret") as (_, url):
        client = LibreTranslateAPI(url, "secret")
        assert client.translate("a", "en", "de") == "full:a"
        assert client.detect("a") == [{"language": "en", "confidence": 0.0}]
        assert [one["code"] for one in client.languages()] == ["en", "de"]
        with pytest.raises(HTTPError) as caught:
            LibreTranslateAPI(url, "wrong").translate("a", "en", "de")
        assert caught.value.code == 403
        caught.value.close()
        assert httpx.get(f"{url}/frontend/settings").json()["keyRequired"] is True


def test_a_key_that_is_no_text_is_a_wrong_key(tmp_path: Path, factory: FakeFactory) -> None:
    with serving(tmp_path, factory, token="secret") as (_, url):
        body = b'{"q": "a", "source": "en", "target": "de", "api_key": "\\ud800"}'
        answer = httpx.post(f"{url}/translate", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 403, answer.text


def test_lists_alternatives_and_auto(web: httpx.Client) -> None:
    said = web.post("/translate", json={"q": ["a", "b"], "source": "auto", "target": "DE", "alternatives": 2}).json()
    found = {"language": "en", "confidence": 0.0}
    assert said == {
        "translatedText": ["full:a", "full:b"],
        "alternatives": [["a #1", "a #2"], ["b #1", "b #2"]],
        "detectedLanguage": [found, found],
    }
    assert web.post("/translate", data={"q": ["a", "b"], **PAIR}).json() == {"translatedText": ["full:a", "full:b"]}


def test_alternatives_that_a_divided_text_cannot_have_cost_nothing(tmp_path: Path, factory: FakeFactory) -> None:
    """The server tries again without them, and counts the text once: else a small allowance would never do."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(line_of("slow", "of-slow", ["translate"], {"texts_per_second": 0.001, "burst": 1}))
    with serving(tmp_path, factory, tokens=tokens) as (_, url):
        body = {"q": "A dog runs.\nA cat sleeps.", "alternatives": 2, "api_key": "of-slow", **PAIR}
        said = httpx.post(f"{url}/translate", json=body)
        assert said.status_code == 200, said.text
        assert said.json()["translatedText"] == "full:A dog runs.\nfull:A cat sleeps."
        assert httpx.post(f"{url}/translate", json=body).status_code == 429


def test_html_keeps_entities_and_refuses_tags(web: httpx.Client) -> None:
    said = web.post("/translate", json={"q": "a &amp; b < c", "format": "html", **PAIR}).json()
    assert said == {"translatedText": "full:a &amp; b &lt; c"}
    refused = web.post("/translate", json={"q": "a <b>c</b>", "format": "html", **PAIR})
    assert (refused.status_code, "does not translate HTML with tags" in refused.json()["error"]) == (400, True)
    assert web.post("/translate", json={"q": "a <b>c</b>", **PAIR}).json() == {"translatedText": "full:a <b>c</b>"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "missing q parameter"),
        ({"q": "a"}, "missing source parameter"),
        ({"q": "a", "source": "en"}, "missing target parameter"),
        ({"q": "a", "source": "en", "target": "fr"}, "en to fr is not supported: this server translates en to de"),
        ({"q": "a", "source": "\ud800", "target": "fr"}, "is not supported"),
        ({"q": 5, **PAIR}, "q must be a text"),
        ({"q": "\ud800", **PAIR}, "half of a surrogate pair"),
        ({"q": "a", "format": "pdf", **PAIR}, "'pdf' is not a supported format"),
        ({"q": "a", "alternatives": 99, **PAIR}, "alternatives must be a whole number from 0 to 15"),
        ({"q": "a", "alternatives": "x", **PAIR}, "alternatives must be"),
        ([], "send an object"),
    ],
)
def test_errors_have_its_shape(web: httpx.Client, body: Any, message: str) -> None:
    sent = json.dumps(body)  # ASCII: other surrogates cannot be sent
    response = web.post("/translate", content=sent, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert list(response.json()) == ["error"]
    assert message in response.json()["error"]


def test_a_full_queue_is_429(web: httpx.Client) -> None:
    response = web.post("/translate", json={"q": ["hold"] * 9, **PAIR})
    assert (response.status_code, int(response.headers["retry-after"]) >= 1) == (429, True)
    assert "the queue is full" in response.json()["error"]


def test_health_and_settings(web: httpx.Client) -> None:
    assert web.get("/health").json() == {"status": "ok"}
    said = web.get("/frontend/settings").json()
    assert said["language"] == {
        "source": {"code": "en", "name": "English"},
        "target": {"code": "de", "name": "German"},
    }


def test_a_character_reference_of_many_digits_is_refused(web: httpx.Client) -> None:
    body = {"q": f"&#{'9' * 5000};", "source": "en", "target": "de", "format": "html"}
    refused = web.post("/translate", json=body)
    assert refused.status_code == 400
    assert "character reference" in refused.json()["error"]

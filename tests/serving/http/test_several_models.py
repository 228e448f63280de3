"""LibreTranslate's API and the JSON twins before several models, and texts of many sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI
from tests.serving.fakes import FakeFactory, write_bundle
from tests.serving.http.conftest import url_of

from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

LONG = "\n\n".join(["A dog runs. It sees a cat.", "- The cat sleeps.", "x " * 20 + "y."]) + "\n"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("models")
    bundles = {
        "en-de": write_bundle(folder / "a"),
        "fr-en": write_bundle(folder / "b", levels=("h12", "h6"), languages=("fr", "en")),
        "any-de": write_bundle(folder / "c", levels=("h6",), languages=("mul", "de")),
    }
    with BackgroundServer(bundles, ServerSettings(port=0, http_port=0), FakeFactory()) as running:
        yield url_of(running)


@pytest.fixture(scope="module")
def web(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=600) as client:
        yield client


@pytest.mark.parametrize(
    ("source", "target", "level"),
    [
        ("en", "de", "full"),
        ("fr", "en", "h12"),
        ("auto", "de", "full"),  # the first model with the target
        ("auto", "en", "h12"),
        ("en-GB", "de_AT", "full"),
        ("fra", "eng", "h12"),
        ("ja", "de", "h6"),  # a model of several source languages reads all
    ],
)
def test_its_own_client_gets_the_model_of_the_languages(url: str, source: str, target: str, level: str) -> None:
    assert LibreTranslateAPI(url).translate("a", source, target) == f"{level}:a"


def test_the_languages_of_all_models(url: str) -> None:
    client = LibreTranslateAPI(url)
    assert {one["code"]: one["targets"] for one in client.languages()} == {
        "en": ["de"], "fr": ["en"], "mul": ["de"], "de": [],
    }  # fmt: skip
    assert [one["language"] for one in client.detect("a")] == ["en", "fr", "mul"]


def test_a_pair_of_no_model_is_refused_with_those_there_are(web: httpx.Client) -> None:
    response = web.post("/translate", json={"q": "a", "source": "fr", "target": "es"})
    assert response.status_code == 400
    assert response.json()["error"] == (
        "fr to es is not supported: this server translates en to de, fr to en, mul to de"
    )


def test_long_texts_are_translated_whole(web: httpx.Client, url: str) -> None:
    said = LibreTranslateAPI(url).translate(LONG, "en", "de")
    assert said.startswith("full:A dog runs. full:It sees a cat.\n\n- full:The cat sleeps.\n\nfull:x x")
    assert said.endswith("y.\n")
    assert said.count("x") == LONG.count("x")
    both = web.post("/translate", json={"q": ["a", LONG], "source": "en", "target": "de", "alternatives": 2}).json()
    assert both == {"translatedText": ["full:a", said], "alternatives": [[], []]}


def test_twins_choose_a_model(web: httpx.Client) -> None:
    def text(**level: Any) -> str:
        answer = web.post("/v1/translate", json={"texts": ["a"], "level": level}).json()
        return str(answer["translations"][0]["text"])

    assert [text(), text(model="fr-en"), text(sourceLanguage="fr"), text(model="fr-en", name="h6")] == [
        "full:a", "h12:a", "h12:a", "h6:a",
    ]  # fmt: skip
    assert [one["name"] for one in web.get("/v1/models").json()["models"]] == ["en-de", "fr-en", "any-de"]
    assert [one["name"] for one in web.get("/v1/levels", params={"model": "fr-en"}).json()["levels"]] == ["h12", "h6"]
    refused = web.get("/v1/levels", params={"model": "nope"})
    assert (refused.status_code, refused.json()["code"]) == (404, "NOT_FOUND")
    assert web.post("/v1/admin/set-default-level", json={"name": "h6", "model": "fr-en"}).json()["level"]["isDefault"]
    assert text(sourceLanguage="fr") == "h6:a"
    web.post("/v1/admin/set-default-level", json={"name": "h12", "model": "fr-en"})


def test_documents_as_events_and_at_once(web: httpx.Client) -> None:
    from tests.serving.http.test_twins import events

    body = {"text": LONG, "level": {"model": "en-de"}}
    *pieces, end = events(web.post("/v1/document", json=body, headers={"Accept": "text/event-stream"}).text)
    said = "".join(data["text"] for _, data in pieces)
    assert said.startswith("full:A dog runs. full:It sees a cat.\n\n- full:The cat")
    assert end == ("end", {})
    whole = web.post("/v1/document", json=body).json()
    assert (whole["translations"][0]["text"], whole["level"]) == (said, "full")
    alike = web.post("/v1/translate", json={"texts": [LONG], "level": body["level"]}).json()["translations"][0]
    assert whole["translations"][0]["score"] == pytest.approx(alike["score"])
    assert alike["score"] < 0
    segments = whole["translations"][0]["segments"]
    assert [LONG[one["sourceBegin"] : one["sourceEnd"]] for one in segments][:2] == ["A dog runs.", "It sees a cat."]
    assert [said[one["targetBegin"] : one["targetEnd"]] for one in segments][:2] == [
        "full:A dog runs.", "full:It sees a cat.",
    ]  # fmt: skip
    refused = web.post("/v1/document", json={**body, "segmentation": "SEGMENTATION_NONE"})
    assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_ARGUMENT")


def test_every_violation_is_in_the_details(web: httpx.Client) -> None:
    body = {"texts": [], "options": {"beamSize": 99, "lengthPenalty": -1}, "level": {"sourceLanguage": "!"}}
    response = web.post("/v1/translate", json=body)
    assert response.status_code == 400
    (detail,) = response.json()["details"]
    assert detail["@type"] == "type.googleapis.com/google.rpc.BadRequest"
    fields = {one["field"] for one in detail["fieldViolations"]}
    assert fields == {"texts", "options.beam_size", "options.length_penalty", "level.source_language"}

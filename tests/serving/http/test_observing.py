"""Metrics over HTTP, and the headers that keep browsers safe."""

from __future__ import annotations

import httpx
import pytest


def calls(web: httpx.Client, code: str) -> float:
    """How many calls of Translate ended with this status."""
    wanted = f'hmc_calls_total{{code="{code}",method="/hmc.v1.TranslationService/Translate"}} '
    lines = web.get("/metrics").text.splitlines()
    return sum(float(line.removeprefix(wanted)) for line in lines if line.startswith(wanted))


def test_calls_over_http_are_counted(web: httpx.Client) -> None:
    before = calls(web, "OK"), calls(web, "INVALID_ARGUMENT")
    web.post("/v1/translate", json={"texts": ["a"]})
    web.post("/v1/translate", json={"unknown": 1})
    web.post("/translate", data={"q": "a", "source": "en", "target": "de"})
    assert (calls(web, "OK"), calls(web, "INVALID_ARGUMENT")) == (before[0] + 2, before[1] + 1)


def test_no_other_scheme_is_suggested(web: httpx.Client) -> None:
    """Behind a proxy that ends TLS a redirect would name http, and a client would send its text there."""
    answer = web.post("/v1/translate/", json={"texts": ["a"]})
    assert (answer.status_code, answer.headers.get("location")) == (404, None)


def test_openmetrics_on_request(web: httpx.Client) -> None:
    response = web.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/static/main.js", "/static/nowhere", "/v1/levels", "/nowhere", "/health"]
)
def test_every_answer_has_the_security_headers(web: httpx.Client, path: str) -> None:
    headers = web.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py"])
def test_only_the_playgrounds_files_are_served(web: httpx.Client, path: str) -> None:
    assert web.get(path).status_code == 404

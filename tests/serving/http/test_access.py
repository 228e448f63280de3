"""Who may call what over HTTP: tokens with scopes and rates, the address of admin, and certificates that change."""

from __future__ import annotations

import shutil
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.serving.certificates import make_certificate
from tests.serving.fakes import GUARD_S, FakeFactory, eventually
from tests.serving.http.conftest import serving

from hmc.artifact import InvalidRequestError
from hmc.serving.server.access.tokens import line_of
from hmc.serving.server.settings import ServerSettings

TOKENS: dict[str, tuple[list[str], dict[str, float]]] = {
    "reader": (["translate"], {"texts_per_second": 0.001, "burst": 2}),
    "short": (["translate"], {"max_characters": 5}),
    "prometheus": (["metrics"], {}),
    "root": (["translate", "admin", "metrics"], {}),
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("guarded")
    tokens = folder / "tokens.toml"
    tokens.write_text(
        "\n".join(line_of(name, f"of-{name}", scopes, limits) for name, (scopes, limits) in TOKENS.items())
    )
    with serving(folder, FakeFactory(), tokens=tokens) as (_, url):
        yield url


def as_(url: str, name: str) -> httpx.Client:
    """A client with the token of this name."""
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer of-{name}"}, timeout=600)


def test_scopes(guarded: str) -> None:
    with as_(guarded, "prometheus") as web:
        assert web.get("/metrics").status_code == 200
        for response in (web.get("/v1/levels"), web.post("/v1/translate", json={"texts": ["a"]})):
            assert (response.status_code, response.json()["code"]) == (403, "PERMISSION_DENIED")
            assert "it needs the scope translate, and has metrics" in response.json()["message"]
        said = web.post("/translate", json={"q": "a", "source": "en", "target": "de"})
        assert (said.status_code, list(said.json())) == (403, ["error"])
    with as_(guarded, "short") as web:
        assert web.get("/v1/levels").status_code == 200
        for refused in (web.get("/metrics"), web.post("/v1/admin/unload-level", json={"name": "h6"})):
            assert (refused.status_code, refused.json()["code"]) == (403, "PERMISSION_DENIED")
    with as_(guarded, "root") as web:
        assert web.post("/v1/admin/load-level", json={"name": "h6"}).status_code == 200
    with as_(guarded, "nobody") as web:
        unknown = web.get("/v1/levels")
        assert (unknown.status_code, unknown.headers["www-authenticate"]) == (401, "Bearer")
        assert web.get("/health/ready").status_code == 200


def test_sizes_and_rates(guarded: str) -> None:
    with as_(guarded, "short") as web:
        large = web.post("/v1/translate", json={"texts": ["abcdef"]})
        assert (large.status_code, large.json()["code"]) == (400, "INVALID_ARGUMENT")
        assert web.post("/v1/translate", json={"texts": ["abcde"]}).status_code == 200
    with as_(guarded, "reader") as web:
        assert web.post("/v1/translate", json={"texts": ["a", "b"]}).status_code == 200
        refused = web.post("/v1/translate", json={"texts": ["c"]})
        assert (refused.status_code, refused.json()["code"]) == (429, "RESOURCE_EXHAUSTED")
        assert int(refused.headers["retry-after"]) > 500  # a text every 1000 seconds
        assert "ask the operator for a higher rate" in refused.json()["message"]
        said = web.post("/translate", json={"q": "a", "source": "en", "target": "de"})
        assert (said.status_code, int(said.headers["retry-after"]) > 500) == (429, True)


def test_the_document_says_that_a_token_is_needed(guarded: str) -> None:
    paths = httpx.get(f"{guarded}/openapi.json").json()["paths"]
    open_ = {path for path, one in paths.items() if not all("security" in operation for operation in one.values())}
    assert open_ == {"/health", "/health/live", "/health/ready", "/frontend/settings"}


def test_admin_at_its_own_address_is_not_here(tmp_path: Path, factory: FakeFactory) -> None:
    with serving(tmp_path, factory, admin_address="127.0.0.1:0") as (_, url):
        for name in ("reload", "load-level", "unload-level", "set-default-level"):
            assert httpx.post(f"{url}/v1/admin/{name}", json={"name": "h6"}).status_code == 404
        paths = httpx.get(f"{url}/openapi.json").json()["paths"]
        assert [path for path in paths if "admin" in path] == []
        assert httpx.post(f"{url}/v1/translate", json={"texts": ["a"]}).status_code == 200


def test_client_certificates_exclude_this_port(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    with pytest.raises(InvalidRequestError, match="the HTTP listener does not check client certificates; leave http_"):
        ServerSettings(tls_cert=cert, tls_key=key, tls_client_ca=cert, http_port=0)


def test_a_new_certificate_under_requests(tmp_path: Path, factory: FakeFactory) -> None:
    """No request fails, whether it opens a connection or has one, and new connections get the new certificate."""
    cert, key = make_certificate(tmp_path)
    renewed = make_certificate(tmp_path, "renewed", kind="ec")
    old, new = cert.read_text(), renewed[0].read_text()
    trusted = ssl.create_default_context(cadata=old + new)
    stop, answered = threading.Event(), threading.Semaphore(0)

    def ask(url: str, *, keep: bool) -> int:
        calls = 0
        while not stop.is_set():
            with httpx.Client(base_url=url, verify=trusted, timeout=600) as web:
                while not stop.is_set():
                    said = web.post("/v1/translate", json={"texts": ["a"]}).json()
                    assert said["translations"][0]["text"] == "full:a"
                    calls += 1
                    answered.release()
                    if not keep:
                        break
        return calls

    with serving(tmp_path, factory, tls_cert=cert, tls_key=key) as (_, url), ThreadPoolExecutor(3) as pool:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        loads = [pool.submit(ask, url, keep=keep) for keep in (True, False, False)]
        try:
            assert answered.acquire(timeout=600)
            assert ssl.get_server_certificate(address).strip() == old.strip()
            for made, used in zip(renewed, (cert, key), strict=True):  # put in place whole, the key last
                shutil.copy(made, f"{used}.new")
                Path(f"{used}.new").replace(used)
            eventually(lambda: ssl.get_server_certificate(address).strip() == new.strip(), 60)
            for _ in range(30):
                assert answered.acquire(timeout=600)
        finally:
            stop.set()
        assert all(done.result(GUARD_S) for done in loads)

"""A browser at the playground of a real server with a real model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.serving.fakes import FakeFactory
from tests.serving.http.conftest import serving

from hmc.serving import Translator
from hmc.serving.requests.options import DecodeOptions
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

TEXT = "A dog runs across the wet grass."
WAIT_MS = 30_000
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium is installed: the playground is not tested")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"] if os.geteuid() == 0 else []
        launched = playwright.chromium.launch(executable_path=found, args=arguments)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def address(lively_bundle: Path, browser: Browser) -> Iterator[str]:
    settings = ServerSettings(port=0, http_port=0, levels=("full", "h12", "h5"), device="cpu", threads=1)
    with BackgroundServer(lively_bundle, settings) as running:
        assert running.server is not None
        yield str(running.server.http_address)


def opened(browser: Browser, url: str, **context: Any) -> tuple[Page, list[str]]:
    """A page in a context of its own, and the addresses it asked and the errors it met."""
    page = browser.new_context(**context).new_page()
    page.set_default_timeout(WAIT_MS)
    seen: list[str] = []
    page.on("request", lambda request: seen.append(request.url))
    page.on("pageerror", lambda error: seen.append(f"error: {error}"))
    page.goto(url)
    return page, seen


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    found, seen = opened(browser, address)
    yield found
    found.context.close()
    assert [one for one in seen if not one.startswith(address)] == []  # nothing from elsewhere, and no error


@pytest.fixture(scope="module")
def expected(lively_bundle: Path) -> str:
    with Translator(lively_bundle, "full", device="cpu", threads=1) as translator:
        return translator.translate([TEXT], options=DecodeOptions(beam_size=4))[0].text


def test_levels_side_by_side(page: Page, expected: str) -> None:
    expect(page.get_by_label("English")).to_be_focused()
    expect(page.get_by_role("heading", name="One text, every level")).to_be_visible()
    page.get_by_label("English").fill(TEXT)
    cards = page.get_by_role("article")
    expect(cards).to_have_count(3)
    expect(page.get_by_role("article", name="full").locator(".to")).to_have_text(expected)
    for card in cards.all():
        expect(card.locator("dd").first).to_contain_text("ms")
        expect(card.get_by_text("not measured")).to_be_visible()  # the tiny bundle has no BLEU
    heads = page.get_by_role("article", name="h12").get_by_role("img")
    expect(heads.locator("rect:not(.closed)")).to_have_count(12)
    expect(heads.locator("rect")).to_have_count(24)
    page.get_by_label("h12", exact=False).first.uncheck()
    expect(cards).to_have_count(2)


def test_by_keyboard_alone(page: Page) -> None:
    keyboard = page.keyboard
    expect(page.get_by_label("English")).to_be_focused()
    keyboard.type(TEXT)
    keyboard.press("Control+Enter")
    words = page.get_by_role("article", name="full").locator(".to .word")
    expect(words.first).to_be_visible()
    expect(page.locator("[aria-busy]")).to_have_count(0)
    reached = []
    for _ in range(12):
        keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "() => document.activeElement.className || document.activeElement.id || document.activeElement.value"
            )
        )
        if "word" in reached[-1].split():
            break
    assert reached[:5] == ["clear" if reached[0] == "clear" else "plain", "go", "full", "full-int8", "h12"]
    assert reached[-1].startswith("word")
    expect(words.first).to_be_focused()
    keyboard.press("ArrowRight")
    expect(words.nth(1)).to_be_focused()
    said = page.locator("#aligned")
    expect(said).to_contain_text("%")
    assert said.inner_text().startswith(words.nth(1).inner_text() + ": ")
    keyboard.press("End")
    expect(words.last).to_be_focused()


def test_pointing_at_a_word_lights_its_source(page: Page, expected: str) -> None:
    page.get_by_label("English").fill(TEXT)
    card = page.get_by_role("article", name="full")
    expect(card.locator(".to")).to_have_text(expected)
    expect(card.locator(".from")).to_have_text(TEXT)
    expect(card.locator(".from .lit")).to_have_count(0)
    card.locator(".to .word").first.hover()
    expect(card.locator(".from .lit").first).to_be_visible()
    weights = [
        float(found.evaluate("e => e.style.getPropertyValue('--weight')")) for found in card.locator(".from .lit").all()
    ]
    assert 0 < max(weights) <= 1
    page.get_by_label("English").hover()
    expect(card.locator(".from .lit")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen_in_both_schemes(browser: Browser, address: str, width: int, scheme: Any) -> None:
    page, seen = opened(browser, address, viewport={"width": width, "height": 844}, color_scheme=scheme)
    page.get_by_label("English").fill(TEXT)
    expect(page.locator(".to")).to_have_count(3)
    assert page.evaluate("() => document.documentElement.scrollWidth") == width
    boxes = [card.bounding_box() for card in page.get_by_role("article").all()]
    assert len({round(box["y"]) for box in boxes if box}) == (3 if width == 390 else 1)
    red, green, blue = page.evaluate(
        "() => getComputedStyle(document.body).color.match(/\\d+/g).slice(0, 3).map(Number)"
    )
    assert (red + green + blue > 384) == (scheme == "dark")
    page.context.close()
    assert [one for one in seen if not one.startswith(address)] == []


def test_every_control_has_a_name(page: Page) -> None:
    page.get_by_label("English").fill(TEXT)
    expect(page.locator(".to")).to_have_count(3)
    for found in page.locator("button, select, input, textarea, [role=img], [role=group], section, article").all():
        name = found.evaluate(
            "e => (e.getAttribute('aria-label') || (e.labels && [...e.labels].map(l => l.innerText).join()) || "
            "(document.getElementById(e.getAttribute('aria-labelledby')) || e).textContent).trim()"
        )
        assert name, found.evaluate("e => e.outerHTML")


def test_the_page_of_the_api(browser: Browser, address: str) -> None:
    page, seen = opened(browser, f"{address}/docs")
    page.get_by_text("/v1/translate").first.click()
    page.get_by_role("link", name="TranslateRequest").first.click()
    expect(page.locator("#schema-TranslateRequest").get_by_text("targetPrefixes")).to_be_visible()
    page.context.close()
    assert [one for one in seen if not one.startswith(address)] == []


def test_a_token_and_then_an_error(browser: Browser, tmp_path: Path, factory: FakeFactory) -> None:
    with serving(tmp_path, factory, token="secret") as (_, url):
        page, _ = opened(browser, url)
        field = page.get_by_label("This server needs a token")
        field.fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_text("The server does not take this token.")).to_be_visible()
        field.fill("secret")
        page.keyboard.press("Enter")
        page.get_by_label("English").fill("crash")
        expect(page.get_by_role("alert").first).to_contain_text("the server has a bug")
        page.get_by_label("English").fill("hello <b>you</b>")
        expect(page.get_by_role("article", name="full").locator(".to")).to_have_text("full:hello <b>you</b>")
        page.context.close()


def test_a_server_that_is_gone(browser: Browser, tmp_path: Path, factory: FakeFactory) -> None:
    with serving(tmp_path, factory) as (_, url):
        page, _ = opened(browser, url)
        expect(page.get_by_label("English")).to_be_focused()
    page.get_by_label("English").fill("hello")
    expect(page.get_by_role("alert").first).to_contain_text("The server does not answer")
    page.context.close()

"""A browser at the playground of a real server with a real model."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Response, Route, expect, sync_playwright
from tests.manifests import changed_manifest
from tests.serving.fakes import FakeFactory, write_bundle
from tests.serving.http.conftest import serving, url_of

from hmc.serving import DecodeOptions, Translator
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

TEXT = "A dog runs across the wet grass."
QUIET = [
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
FAINT = (Path(__file__).parent / "faint.js").read_text(encoding="utf-8")
"""Finds texts with too little contrast: less than 4.5, or 3 if they are large (WCAG 2.2, 1.4.3)."""
BOX = "e => [e.clientWidth, e.scrollHeight, e.getBoundingClientRect().x, e.getBoundingClientRect().y]"
WAIT_MS = 30_000
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium is installed: the playground is not tested")
    with sync_playwright() as playwright:
        arguments = [*QUIET, *(["--no-sandbox", "--disable-dev-shm-usage"] if os.geteuid() == 0 else [])]
        launched = playwright.chromium.launch(executable_path=found, args=arguments)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def address(lively_bundle: Path, browser: Browser) -> Iterator[str]:
    settings = ServerSettings(port=0, http_port=0, levels=("full", "h12", "h5"), device="cpu", threads=1)
    with BackgroundServer(lively_bundle, settings) as running:
        yield url_of(running)


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
        expect(card.locator("dd").first).to_have_text(re.compile(r"\d m?s$"))
        expect(card.get_by_text("not measured")).to_be_visible()  # the tiny bundle has no BLEU
    heads = page.get_by_role("article", name="h12").get_by_role("img")
    expect(heads.locator("rect:not(.closed)")).to_have_count(12)
    expect(heads.locator("rect")).to_have_count(24)
    page.locator("input[value=h12]").uncheck(force=True)
    expect(cards).to_have_count(2)


def test_the_time_of_a_card_is_what_its_level_computed(page: Page) -> None:
    """Neither the wait for another request counts, nor the first request of a level, which opens its graphs."""
    asked: list[tuple[str, str]] = []
    under_way: list[str] = []

    def answer(route: Route) -> None:
        sent = route.request.post_data_json or {}
        level, beam = sent["level"]["name"], sent["options"]["beamSize"]
        asked.append((level, sent["texts"][0]))
        under_way.append(level)
        assert len(under_way) == 1
        answered = route.fetch()
        opening = [name for name, _ in asked].count(level) < 3  # with alignment, and the first one without
        times = {"queueMs": 4000.0, "computeMs": 900.0 if opening else {"full": 8.0, "h12": 6.0, "h5": 3.0}[level]}
        under_way.remove(level)
        route.fulfill(response=answered, json=answered.json() | times)
        assert beam == 4

    page.route("**/v1/translate", answer)
    page.get_by_label("English").fill(TEXT)
    for level, said in (("full", "8.0 ms"), ("h12", "6.0 ms"), ("h5", "3.0 ms")):
        expect(page.get_by_role("article", name=level).locator("dd").first).to_have_text(said)
    shown = page.locator("#levels input:checked").evaluate_all("boxes => boxes.map((box) => box.value)")
    assert sorted(shown) == ["full", "h12", "h5"]
    assert [name for name, _ in asked] == [name for name in shown for _ in range(3)]
    page.get_by_label("English").fill(f"{TEXT} {TEXT}")
    expect(page.locator("#mirror")).to_have_text(f"{TEXT} {TEXT}")
    expect(page.locator("#curl")).to_contain_text(f'{TEXT} {TEXT}"],"level":{{"name":"{shown[-1]}"')
    assert [name for name, _ in asked[9:]] == [name for name in shown for _ in range(2)]


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
    assert reached[:5] == ["clear" if reached[0] == "clear" else "plain", "go", "full", "full-int8", "h12-int8"]
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
    source = page.locator("#mirror")
    expect(source).to_have_text(TEXT)
    expect(source.locator(".lit")).to_have_count(0)
    card.locator(".to .word").first.hover()
    expect(source.locator(".lit").first).to_be_visible()
    weights = [
        float(found.evaluate("e => e.style.getPropertyValue('--weight')")) for found in source.locator(".lit").all()
    ]
    assert 0 < max(weights) <= 1
    page.get_by_label("English").hover()
    expect(source.locator(".lit")).to_have_count(0)


def test_the_source_stands_once_and_pointing_at_it_lights_every_card(page: Page) -> None:
    text = f"{TEXT} {DOCUMENT}" * 3
    page.get_by_label("English").fill(text)
    expect(page.locator(".to")).to_have_count(3)
    expect(page.locator("[aria-busy]")).to_have_count(0)
    assert not any("A dog runs across" in card.inner_text() for card in page.get_by_role("article").all())
    mirror = page.locator("#mirror")
    assert mirror.evaluate("e => e.textContent") == text
    field, behind = (page.locator(name).evaluate(BOX) for name in ("#text", "#mirror"))
    assert field == behind  # the same lines at the same place
    for top in (20, 0):  # the field is higher than what it shows
        page.locator("#text").evaluate(f"e => e.scrollTo(0, {top})")
        page.wait_for_function(f"() => mirror.scrollTop === {top} && text.scrollTop === {top}")
    attended = "cards => cards.map((card) => card.querySelectorAll('.lit').length)"
    lit = list[list[int]]()
    for word in mirror.locator(".word").all()[:6]:
        box = word.bounding_box()
        assert box
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        lit.append(page.locator(".card").evaluate_all(attended))
    assert [any(counts) for counts in zip(*lit, strict=True)] == [True, True, True]
    page.locator("h1").hover()
    expect(page.locator(".lit")).to_have_count(0)
    page.get_by_label("English").press_sequentially("A")  # its words are no longer those of the translations
    assert mirror.evaluate("e => e.textContent") == ""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_the_screen_in_both_schemes(browser: Browser, address: str, width: int, scheme: Any) -> None:
    page, seen = opened(
        browser, address, viewport={"width": width, "height": 844}, color_scheme=scheme, reduced_motion="reduce"
    )
    page.get_by_label("English").fill(TEXT)
    expect(page.locator(".to")).to_have_count(3)
    assert page.evaluate("() => document.documentElement.scrollWidth") == width
    page.locator("#mirror").evaluate(
        "e => { e.style.color = getComputedStyle(document.getElementById('text')).color; }"
    )
    page.locator("#mirror .word, .to .word").evaluate_all(
        "all => all.forEach(e => { e.classList.add('lit'); e.style.setProperty('--weight', 1); })"
    )
    assert page.evaluate(FAINT) == []
    boxes = [card.bounding_box() for card in page.get_by_role("article").all()]
    assert len({round(box["y"]) for box in boxes if box}) == (3 if width == 360 else 1)
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


DOCUMENT = "A dog runs.\nTwo men sit.\n\n- A girl sings.\n"


def test_it_opens_with_the_levels_that_no_other_one_beats(
    browser: Browser, tmp_path: Path, factory: FakeFactory
) -> None:
    bundle = write_bundle(tmp_path / "b")
    with changed_manifest(bundle) as raw:
        raw["levels"][1]["quality"]["bleu_delta"] = -5.0  # h12 is slower and worse than h6
        raw["default_level"] = "h6"
    with BackgroundServer(bundle, ServerSettings(port=0, http_port=0), factory) as running:
        page, _ = opened(browser, url_of(running))
        expect(page.get_by_label("English")).to_be_focused()
        chosen = {name: page.locator(f"input[value={name}]").is_checked() for name in ("full", "h12", "h6")}
        assert chosen == {"full": True, "h12": False, "h6": True}
        expect(page.get_by_title("h6 is as good and as fast")).to_have_count(1)
        page.context.close()


def test_a_document_keeps_its_paragraphs(page: Page) -> None:
    page.get_by_label("English").fill(DOCUMENT)
    card = page.get_by_role("article", name="full")
    expect(card.get_by_text("3 sentences")).to_be_visible()
    assert page.locator("#mirror").evaluate("e => e.textContent") == DOCUMENT
    said = card.locator(".to").evaluate("e => e.textContent")
    assert [bool(line.strip()) for line in said.split("\n")] == [True, True, False, True, False]
    assert said.split("\n")[3].startswith("- ")
    words = card.locator(".to .word")
    words.last.hover()  # a word of the last sentence comes from that sentence
    first_of_last = DOCUMENT[: DOCUMENT.index("- ")].split()
    lit = page.locator("#mirror .word").evaluate_all("all => all.map((e, i) => e.classList.contains('lit') ? i : -1)")
    assert max(lit) >= len(first_of_last)
    assert all(index == -1 for index in lit[: len(first_of_last)])


def test_several_models(browser: Browser, tmp_path: Path) -> None:
    bundles = {
        "en-de": write_bundle(tmp_path / "a"),
        "fr-en": write_bundle(tmp_path / "b", levels=("h12", "h6"), languages=("fr", "en")),
    }
    with BackgroundServer(bundles, ServerSettings(port=0, http_port=0), FakeFactory()) as running:
        page, seen = opened(browser, url_of(running))
        page.get_by_label("English", exact=True).fill("dog")
        expect(page.get_by_role("article", name="full").locator(".to")).to_have_text("full:dog")
        page.get_by_label("Model").select_option(label="French → English")
        expect(page.get_by_role("article")).to_have_count(2)
        expect(page.get_by_role("article", name="h12").locator(".to")).to_have_text("h12:dog")
        expect(page.get_by_label("French", exact=True)).to_be_visible()
        expect(page.get_by_text("29.8")).to_be_visible()  # BLEU, as the bundle has it
        page.get_by_label("French", exact=True).fill("hold")
        expect(page.get_by_role("article", name="h12")).to_have_attribute("aria-busy", "true")
        page.get_by_label("French", exact=True).fill("chien")  # the text before is given up
        expect(page.get_by_role("article", name="h6").locator(".to")).to_have_text("h6:chien")
        page.context.close()
    assert [one for one in seen if one.startswith("error:")] == []


def asks_for(language: str, response: Response) -> bool:
    """Whether a translation into this language is answered. Answers to earlier requests may still arrive."""
    asked = response.request.post_data_json if response.url.endswith("/v1/translate") else None
    return bool(asked and asked["level"]["targetLanguage"] == language)


def test_a_model_of_several_target_languages(browser: Browser, multilingual_bundle: Path) -> None:
    settings = ServerSettings(port=0, http_port=0, device="cpu", threads=1)
    with BackgroundServer(multilingual_bundle, settings) as running, httpx.Client(base_url=url_of(running)) as web:
        page, seen = opened(browser, url_of(running))
        page.get_by_label("English", exact=True).fill(TEXT)
        for name, tag in (("German", "de"), ("Dutch", "nl")):
            with page.expect_response(partial(asks_for, tag)):
                page.get_by_label("To", exact=True).select_option(label=name)
                page.get_by_role("button", name="Translate", exact=True).click()
            expect(page.locator(".to").first).to_have_attribute("lang", tag)
            said = web.post("/translate", json={"q": TEXT, "source": "en", "target": tag}).json()["translatedText"]
            expect(page.locator(".to").first).to_have_text(said)
        page.locator(".to .word").first.hover()  # the token of the language is no word of the source
        expect(page.locator("#mirror .lit").first).to_be_visible()
        page.context.close()
    assert [one for one in seen if one.startswith("error:")] == []


def test_a_long_text_is_shown_piece_by_piece(browser: Browser, tmp_path: Path, factory: FakeFactory) -> None:
    with serving(tmp_path, factory) as (_, url):
        page, seen = opened(browser, url)
        text = " ".join([TEXT, "Two men sit on a bench."] * 30)
        page.get_by_label("English").fill(text)
        card = page.get_by_role("article", name="full")
        expect(card.get_by_text("60 sentences")).to_be_visible()
        said = card.locator(".to").evaluate("e => e.textContent")
        assert said == " ".join([f"full:{TEXT}", "full:Two men sit on a bench."] * 30)
        assert page.locator("#mirror").evaluate("e => e.textContent") == text
        assert any(one.endswith("/v1/document") for one in seen)
        assert not any(one.endswith("/v1/translate") for one in seen)
        page.context.close()


def test_a_phone_says_where_a_word_comes_from(browser: Browser, address: str) -> None:
    """The source may be off its screen."""
    page, _ = opened(browser, address, viewport={"width": 360, "height": 640})
    page.get_by_label("English").fill(TEXT)
    page.get_by_role("article").last.locator(".to .word").first.click()
    said = page.locator("#aligned")
    expect(said).to_contain_text("%")
    expect(said).to_be_in_viewport(ratio=1)
    box = said.bounding_box()
    assert box
    assert box["width"] > 300
    page.context.close()


def test_the_last_request_is_shown_as_a_command(page: Page, address: str) -> None:
    page.get_by_label("English").fill("It's a dog.")
    command = page.locator("#curl")
    expect(command).to_contain_text(f"curl {address}/v1/translate")
    page.get_by_text("The last of these requests with curl").click()
    expect(command).to_be_visible()
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed: the command is not run")
    typed = (command.text_content() or "").replace("curl ", f"{curl} --silent ", 1)
    answered = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, check=True).stdout
    assert json.loads(answered)["translations"]


def test_a_text_that_is_too_long_is_said_for_readers(page: Page) -> None:
    page.get_by_label("English").fill("A dog runs. " * 100_000)
    said = page.get_by_role("article", name="full").get_by_role("alert")
    expect(said).to_contain_text("The text is too long: it has 1.1 MiB, and the server takes 1.0 MiB at once.")
    expect(said).not_to_contain_text("texts[0]")


def test_what_a_level_is(page: Page) -> None:
    expect(page.locator("#empty")).to_contain_text("fewer attention heads, layers or neurons, or with rounded numbers")

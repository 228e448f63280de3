"""The page of a report: what it shows, that it loads nothing, and how a browser sees it."""

from __future__ import annotations

import base64
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.benchmark import fakes
from tests.serving.http.test_playground import FAINT, browser, opened  # noqa: F401 - a fixture

from hmc.benchmark import Report
from hmc.benchmark.measure.validity import steadiness
from hmc.benchmark.report.findings import buckets, differing, worst
from hmc.benchmark.report.html import page

PARTS = (
    "Summary", "Quality against speed", "Latency", "Load", "By length of the sentence", "Heads", "Memory and start",
    "Settings of the engines", "Worst sentences, side by side", "How it was measured", "Machine", "Samples",
)  # fmt: skip


def test_every_part_is_there_and_texts_are_escaped() -> None:
    text = page(fakes.whole_report())
    assert re.findall("<h2>(.*?)</h2>", text) == list(PARTS)
    assert "source 9 &lt;b&gt;of&lt;/b&gt; ten" in text
    assert "<b>of</b>" not in text
    assert "commit abc123" in text
    assert text == page(fakes.whole_report())


def test_nothing_is_loaded_from_elsewhere() -> None:
    text = page(fakes.whole_report())
    assert re.findall(r"""(?:src|href)=["'](?!data:)|url\(|@import|<script""", text) == []


def test_a_report_of_little_makes_a_page_too() -> None:
    shown = re.findall("<h2>(.*?)</h2>", page(fakes.report(with_quality=False)))
    assert shown == ["Summary", "Latency", "Memory and start", "How it was measured", "Machine", "Samples"]


def test_the_samples_are_the_report(tmp_path: Path) -> None:
    report = fakes.whole_report()
    found = re.search(r'href="data:application/json;base64,([^"]+)"', page(report))
    assert found is not None
    file = tmp_path / "report.json"
    file.write_bytes(base64.b64decode(found[1]))
    assert Report.read(file) == report


def test_open_heads_are_filled() -> None:
    text = page(fakes.whole_report())
    found = re.search(r'aria-label="h72: open heads, cross">(.*?)</svg>', text)
    assert found is not None
    assert re.findall(r'class="(head(?: closed)?)"', found[1]) == ["head", "head closed", "head", "head"]


def test_lengths_and_worst_sentences() -> None:
    report = fakes.whole_report()
    found = buckets(report)
    assert [(b.low, b.high, b.sentences) for b in found] == [(4, 5, 2), (6, 8, 3), (9, 10, 2), (11, 13, 3)]
    assert found[0].bleu["full"] == pytest.approx(100)
    assert found[3].bleu["h72"] < found[3].bleu["full"]
    assert found[0].p50_ms["full"] == 20.0
    [each] = worst(report)
    assert (each.source, each.level) == ("source 9 <b>of</b> ten", "h72")
    assert each.translations["Peer"] == "Satz Nummer 9 von zehn ist hier"


def test_words_that_differ_are_found() -> None:
    assert differing("a b x y", "a b c") == [("a b", False), ("x y", True)]
    assert differing("same", "same") == [("same", False)]


SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium is installed")
def test_a_browser_shows_it(browser: Any, tmp_path: Path, size: str, scheme: str) -> None:  # noqa: F811
    file = tmp_path / "report.html"
    file.write_text(page(fakes.whole_report()), encoding="utf-8")
    width, height = SIZES[size]
    found, seen = opened(
        browser,
        file.as_uri(),
        viewport={"width": width, "height": height},
        color_scheme=scheme,
    )
    try:
        assert seen == [file.as_uri()]  # no other request, and no error
        assert found.evaluate("document.documentElement.scrollWidth") == width  # only tables scroll sideways
        assert found.evaluate(FAINT) == []
        ground = found.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground))) < 200) is (scheme == "dark")
        assert found.locator("svg.chart").count() >= 6
        smallest = found.evaluate(
            "Math.min(...[...document.querySelectorAll('svg.chart text')].map(t => t.getBoundingClientRect().height))"
        )
        assert smallest >= 9  # pixels: letters of a chart can be read on a phone
        with found.expect_download() as download:
            found.get_by_role("link", name="report.json").click()
        assert json.loads(Path(download.value.path()).read_text(encoding="utf-8"))["schema_version"] == 2
    finally:
        found.context.close()


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        ((10.0, 10.0, 10.0, 10.0), "The machine was steady: times differ by at most 5%"),
        ((10.0, 10.0, 13.0, 13.0), "Not steady: h72. The times of a steady system"),
        ((10.0, 10.0), "With fewer than 3 rounds nothing tells whether the machine was steady."),
    ],
)
def test_the_chart_of_rounds_says_what_they_show(rounds: tuple[float, ...], said: str) -> None:
    plain = fakes.report()
    levels = []
    for level in plain.levels:
        times = tuple((ms if level.name == "h72" else 10.0,) * 4 for ms in rounds)
        at = replace(level.latency[0], samples_ms=times, steadiness=steadiness(times))
        levels.append(replace(level, latency=(at,)))
    conditions = replace(plain.conditions, rounds=len(rounds))
    text = page(replace(plain, levels=tuple(levels), conditions=conditions))
    assert said in text

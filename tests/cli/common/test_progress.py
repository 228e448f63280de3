"""Progress of translations and of `hmc compile`: seldom lines in a log, a bar on a terminal."""

from __future__ import annotations

import io
import re

from rich.console import Console

from hmc.cli.common.progress import EVERY, level_steps, steps, translating
from hmc.pipelines import Progress


def test_a_log_of_translations_gets_a_line_now_and_then() -> None:
    now, written = [0.0], io.StringIO()
    with translating(Console(file=written, width=200), lambda: now[0]) as (report, step):
        step("loading the teacher")
        for lines in range(100, 1001, 100):
            now[0] += EVERY / 4
            report(Progress(lines, 1000, 50.0))
    assert written.getvalue().splitlines() == [
        "loading the teacher",
        "translated 400 of 1,000 lines  50 lines/s, 0.2 min left",
        "translated 800 of 1,000 lines  50 lines/s, 0.1 min left",
        "translated 1,000 of 1,000 lines  50 lines/s, 0.0 min left",
    ]


def test_a_terminal_gets_a_bar_of_translations() -> None:
    written = io.StringIO()
    with translating(Console(file=written, width=120, force_terminal=True)) as (report, step):
        step("loading the teacher")
        report(Progress(10, 1000, 50.0))
    assert "translating" in written.getvalue()
    assert "50 lines/s" in written.getvalue()


def test_a_terminal_gets_a_bar_that_counts_the_steps() -> None:
    console = Console(force_terminal=True, no_color=True, width=120)
    with console.capture() as capture, level_steps(console, 3) as step:
        step("h12: author graphs")
        step("h12: write level")
    shown = capture.get()
    assert re.search(r"33% h12: write level.* left: ", shown)


def test_a_log_has_a_line_a_level() -> None:
    console = Console(width=120)
    with console.capture() as capture, level_steps(console, None) as step:
        for now in ("full: author graphs", "full: write level", "h12: author graphs", "validate"):
            step(now)
    assert capture.get() == "full\nh12\nvalidate\n"


def test_a_bar_begins_anew_with_each_total() -> None:
    console = Console(force_terminal=True, no_color=True, width=120)
    with console.capture() as capture, translating(console) as (report, step):
        step.expect(2)
        for text in ("reading", "writing", "more than was expected"):
            step(text)
        report(Progress(300, 1000, 0.0))
        report(Progress(500, 1000, 50.0))
        step("counting")
    shown = capture.get()
    for said in (
        "  0% reading",
        " 50% writing",
        "  more than was",
        " 30% translating 300 of 1,000 ",
        " 50% translating 500 of 1,000  50 lines/s",
        "  counting",
    ):
        assert said in shown, shown
    assert "100%" not in shown


def test_a_log_may_do_without_steps() -> None:
    console = Console(width=120)
    with console.capture() as capture, steps(console, log=False) as step:
        step.expect(1)
        step("reading")
    assert capture.get() == ""

"""What `hmc compile` shows while it works."""

from __future__ import annotations

from rich.console import Console

from hmc.cli.compile.progress import level_steps


def test_a_terminal_gets_a_bar_that_counts_the_steps() -> None:
    console = Console(force_terminal=True, no_color=True, width=120)
    with console.capture() as capture, level_steps(console, 3) as step:
        step("h12: author graphs")
        step("h12: write level")
    shown = capture.get()
    assert "1/3 h12: write level" in shown


def test_a_log_has_a_line_a_level() -> None:
    console = Console(width=120)
    with console.capture() as capture, level_steps(console, None) as step:
        for now in ("full: author graphs", "full: write level", "h12: author graphs", "validate"):
            step(now)
    assert capture.get() == "full\nh12\nvalidate\n"

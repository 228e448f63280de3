"""`hmc demo`: compiles, serves and measures the embedded model, in under two minutes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hmc.cli.demo_scores import Agreement
    from hmc.cli.demo_steps import Example
    from hmc.pipelines.progress import Steps

NEEDED = ("onnx", "onnx_ir", "ml_dtypes")
"""Modules that the demo imports and that a base installation lacks. The extra `demo` installs them."""
HTTP_PORT = 8080
"""The port of the playground, in the command that the demo prints."""


def command(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the bundle, the results and the picture.", metavar="DIR")
    ] = Path("demo-output"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    checkpoint: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Show what HMC does: compile an embedded English→German model, serve it, translate with it and measure it."""
    import json
    import os

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    _require_extra()
    from hmc.artifact.bundle.manifest import read_manifest
    from hmc.artifact.bundle.order import why_default
    from hmc.artifact.storage.files import write_whole
    from hmc.benchmark.report.results import busy
    from hmc.benchmark.report.tables import advice
    from hmc.cli import demo_steps
    from hmc.cli.common.consoles import open_console
    from hmc.cli.demo_steps import Demo, result

    console = open_console(stderr=as_json)
    demo = Demo(demo_steps.CHECKPOINT, demo_steps.LEVELS, demo_steps.FAST, out, demo_steps.SIZE)
    if checkpoint:
        demo = Demo(checkpoint, checkpoint, None, out, demo_steps.SIZE)
    steps = TimedSteps(console)
    with steps.step("Compile one model into several levels") as progress:
        manifest = demo.compile(progress, progress.expect)
    steps.note(
        f"   {len(manifest.levels)} levels in {demo.bundle}: fewer heads or layers, in int8; all heads in fp32 too"
    )
    with steps.step("Serve them on one port, and translate at each level"):
        address, examples = demo.translate()
    for example in examples:
        show_example(console, example)
    with steps.step("Measure quality and speed") as progress:
        found = demo.benchmark(progress, progress.expect)
    report = found.report
    picture = demo.draw(found)
    manifest = read_manifest(demo.bundle)
    console.print(_result_table(found, manifest.default_level))
    steps.note(found.said)
    if sentence := busy(report):
        steps.note(sentence)
    if not report.peers:
        steps.note("CTranslate2 is not installed: `pip install ctranslate2` lets the demo compare with it.")
    text = json.dumps(result(address, examples, found, steps.seconds), indent=1, ensure_ascii=False)
    if as_json:
        typer.echo(text)
    results = out / demo_steps.RESULTS
    write_whole(results, text + "\n")
    steps.note(f"{report.machine}. {sum(steps.seconds.values()):.0f} s in all.")
    steps.note(f"Picture: {picture}. How it was measured, and every time: {results}")
    said = (advice(report) or "").removeprefix("Take ")
    steps.note(f"\nRecommended: {said}")
    if not said.startswith(f"{manifest.default_level},"):
        steps.note(why_default(manifest))
    lines = next_commands(demo.bundle, manifest.default_level)
    steps.note("Try next:\n" + "\n".join(f"  {line}" for line in lines))


class TimedSteps:
    """Prints the number, the name and the duration of each step."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, what: str) -> Iterator[Steps]:
        """Prints the step and, at its end, its duration. Yields a function that shows progress on a terminal."""
        import time

        from hmc.cli.common.progress import steps

        number = len(self.seconds) + 1
        start = time.perf_counter()
        self.note(f"{number}. {what} …")
        with steps(self.console, log=False) as progress:
            yield progress
        self.seconds[what] = time.perf_counter() - start
        self.note(f"   done in {self.seconds[what]:.1f} s")

    def note(self, text: str) -> None:
        """Prints lines that are not wrapped, so that commands in them can be copied."""
        from hmc.cli.common.consoles import note

        note(self.console, text)


def next_commands(bundle: Path, level: str) -> list[str]:
    """Two commands to try next, which work in the present folder. level: the one that they use by default."""
    import shlex
    import sys

    called = Path(sys.argv[0])
    program = str(called) if called.name == "hmc" else "hmc"
    serve = shlex.join([program, "serve", str(bundle), "--http-port", str(HTTP_PORT)])
    translate = shlex.join([program, "translate", "--bundle", str(bundle), "A man rides a bicycle."])
    return [f"{serve}    # serves {level}, and the others: open http://localhost:{HTTP_PORT}/ in a browser", translate]


def _require_extra() -> None:
    from importlib.util import find_spec

    from hmc.artifact.distribution import how_to_install
    from hmc.artifact.errors import FailedPreconditionError

    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise FailedPreconditionError(f"the demo needs {', '.join(missing)}: {how_to_install('demo')}")


def show_example(console: Console, example: Example) -> None:
    """Prints a sentence and its different translations, each with the levels that gave it."""
    from rich.table import Table
    from rich.text import Text

    levels: dict[str, list[str]] = {}
    for level, translation in example.translations.items():
        levels.setdefault(translation, []).append(level)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 5))
    for translation, names in levels.items():
        said = "all levels" if len(levels) == 1 else ", ".join(names)
        table.add_row(Text(translation), Text(said, style="dim"))
    console.print(Text(f"   {example.source}", style="bold"))
    console.print(table)


def _result_table(found: Agreement, recommended: str) -> Table:
    from hmc.benchmark.report.results import LevelReport
    from hmc.benchmark.report.tables import delta, mebibytes, settings_of, table_of

    report = found.report
    conditions = report.conditions
    settings = settings_of(conditions)
    speeds = [f"times as fast,\n{setting.batch} sentence{'s'[: setting.batch - 1]}" for setting in settings]
    first = report.levels[0].recorded
    number = first.sentences if first else conditions.sentences
    test_set = first.test_set if first else conditions.test_set
    title = f"BLEU on {number:,} sentences of {test_set}, beam {conditions.headline.beam}"
    table = table_of(title, ("level",), ("\nBLEU", "\nΔ [95 %]", *speeds, "\nMiB"))
    for system in report.systems:
        quality = system.recorded if found.holds else system.quality_at(conditions.headline.beam)
        scores = [f"{quality.bleu:.1f}", delta(quality, system.name)] if quality else ["–", "–"]
        times = [f"{1 / system.latency_at(setting).ratio:.1f}×" for setting in settings]
        size = mebibytes(system.bytes) if isinstance(system, LevelReport) else "–"
        table.add_row(system.name, *scores, *times, size, style="bold" if system.name == recommended else None)
    return table

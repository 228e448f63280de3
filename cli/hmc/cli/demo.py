"""`hmc demo`: compiles, serves and measures the embedded model, in under two minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hmc.benchmark.report.results import Report
    from hmc.cli.demo_steps import Example

NEEDED = ("onnx", "onnx_ir", "ml_dtypes", "matplotlib")
"""Modules that the demo imports and that a base installation lacks. The extra `demo` installs them."""


def command(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the bundle, the results and the plot.", metavar="DIR")
    ] = Path("demo-output"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    checkpoint: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Show what HMC does: compile an embedded English→German model, serve it, translate with it and measure it."""
    import json
    import os

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    _require_extra()
    from hmc.artifact.storage.files import write_whole
    from hmc.benchmark.report.tables import advice
    from hmc.cli import demo_steps
    from hmc.cli.common.consoles import open_console
    from hmc.cli.demo_steps import Demo, result

    console = open_console(stderr=as_json)
    demo = Demo(demo_steps.CHECKPOINT, demo_steps.LEVELS, demo_steps.FAST, out, demo_steps.SIZE)
    if checkpoint:
        demo = Demo(checkpoint, checkpoint, None, out, demo_steps.SIZE)
    steps = Steps(console)
    heads = ", ".join(map(str, demo_steps.HEADS))
    fast = "" if checkpoint else ", and with 2 of 6 decoder layers"
    with steps.step(f"compile with all heads and {heads}{fast}, fp32 and int8") as progress:
        manifest = demo.compile(progress)
    steps.note(f"{len(manifest.levels)} levels in {demo.bundle}, bundle {manifest.version}")
    with steps.step("serve on a free port, translate through a gRPC client"):
        address, examples = demo.translate()
    steps.note(f"every level answered on {address}")
    for example in examples:
        console.print(_example_table(example))
    with steps.step("benchmark quality and latency") as progress:
        report = demo.benchmark(steps.note, progress)
    console.print(_result_table(report, demo.bleu_by_kind(report)))
    if report.peers:
        steps.note(
            "On a model this small, what an engine does between steps counts most; docs/performance.md has larger ones."
        )
    else:
        steps.note("CTranslate2 is not installed: `pip install ctranslate2` lets the demo compare with it.")
    if line := advice(report):
        steps.note(line)
    steps.note(f"{report.machine}, load average {report.machine.load_average:.1f} when the benchmark started")
    with steps.step("draw the Pareto plot"):
        paths = demo.plot(report)
    text = json.dumps(result(address, examples, report, steps.seconds), indent=1, ensure_ascii=False)
    if as_json:
        typer.echo(text)
    results = out / demo_steps.RESULTS
    write_whole(results, text + "\n")
    steps.note(f"{sum(steps.seconds.values()):.0f} s in all; see {', '.join(map(str, [*paths, results]))}")
    steps.note("\nTry next:\n" + "\n".join(f"  {line}" for line in next_commands(demo.bundle)))


class Steps:
    """Prints the number, the name and the duration of each step."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, what: str) -> Iterator[Callable[[str], None]]:
        """Prints the step and, at its end, its duration. Yields a function that shows progress on a terminal."""
        import time

        from hmc.cli.common.progress import steps

        number = len(self.seconds) + 1
        start = time.perf_counter()
        self.note(f"{number}. {what} …")
        with steps(self.console) as progress:
            yield progress if self.console.is_terminal else lambda _: None
        self.seconds[what] = time.perf_counter() - start
        self.note(f"{number}. done in {self.seconds[what]:.1f} s")

    def note(self, text: str) -> None:
        """Prints lines that are not wrapped, so that commands in them can be copied."""
        from hmc.cli.common.consoles import note

        note(self.console, text)


def next_commands(bundle: Path) -> list[str]:
    """Three commands to try next, which work in the present folder."""
    import shlex
    import sys

    from hmc.cli.demo_steps import REF, SRC

    called = Path(sys.argv[0])
    program = str(called) if called.name == "hmc" else "hmc"
    arguments = (
        ["serve", str(bundle)],
        ["translate", "--bundle", str(bundle), "--max-heads", "58", "A man rides a bicycle."],
        ["bench", str(bundle), "--source", _shown(SRC), "--reference", _shown(REF), "--levels", "full,h36-int8"],
    )
    return [shlex.join([program, *words]) for words in arguments]


def _shown(path: Path) -> str:
    """The path, relative to the present folder if it lies in it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _require_extra() -> None:
    from importlib.util import find_spec

    from hmc.artifact.distribution import how_to_install
    from hmc.artifact.errors import FailedPreconditionError

    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise FailedPreconditionError(f"the demo needs {', '.join(missing)}: {how_to_install('demo')}")


def _example_table(example: Example) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, title=Text(example.source), title_justify="left")
    table.add_row("reference", Text(example.reference), style="dim")
    for level, translation in example.translations.items():
        table.add_row(level, Text(translation))
    return table


def _result_table(report: Report, kinds: dict[str, dict[str, float]]) -> Table:
    from hmc.benchmark.report.results import LevelReport
    from hmc.benchmark.report.tables import delta, mebibytes, settings_of, table_of

    conditions = report.conditions
    settings = settings_of(conditions)
    names = list(next(iter(kinds.values()), {}))
    speeds = [f"speed,\nbatch {setting.batch}" for setting in settings]
    title = f"{conditions.sentences} sentences of {conditions.test_set}, beam {conditions.headline.beam}"
    table = table_of(title, ("level",), ("\nBLEU", "\nΔ [95 %]", *(f"\n{name}" for name in names), *speeds, "\nMiB"))
    for system in report.systems:
        quality = system.quality_at(conditions.headline.beam)
        scores = [f"{quality.bleu:.2f}", delta(quality, system.name)] if quality else ["–", "–"]
        by_kind = [f"{kinds[system.name][name]:.1f}" for name in names]
        times = [f"{1 / system.latency_at(setting).ratio:.2f}×" for setting in settings]
        size = mebibytes(system.bytes) if isinstance(system, LevelReport) else "–"
        table.add_row(system.name, *scores, *by_kind, *times, size)
    return table

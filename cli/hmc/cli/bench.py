"""`hmc bench`: quality, latency and memory of a bundle's levels, side by side."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hmc.benchmark.settings import BenchmarkSettings


def command(
    bundle: Annotated[Path, typer.Argument(help="Directory that `hmc compile` wrote.", metavar="BUNDLE")],
    src: Annotated[Path, typer.Option(help="Source sentences, one a line; plain or .gz.")],
    ref: Annotated[
        Path | None, typer.Option(help="Reference translations, line for line; without: no quality.")
    ] = None,
    levels: Annotated[str, typer.Option(help="all, or level names with commas.")] = "all",
    batch: Annotated[
        str | None,
        typer.Option(help="Sentences of a request; several sizes with commas. Default: 1,32, or all that are timed."),
    ] = None,
    beam: Annotated[str, typer.Option(help="Beam sizes; several with commas.")] = "1,4",
    rounds: Annotated[int, typer.Option(help="Times every level translates the timed sentences, taking turns.")] = 5,
    limit: Annotated[int, typer.Option(help="Read only so many sentence pairs; 0: all.")] = 0,
    latency_limit: Annotated[int, typer.Option(help="Time only so many of those a round; quality is of all.")] = 128,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int, typer.Option(help="Threads of a level; 0: one per physical core.")] = 0,
    workers: Annotated[
        int, typer.Option(help="Batches that a level runs at the same time, each on --threads threads.")
    ] = 1,
    memory: Annotated[bool, typer.Option(help="Measure peak memory, a process for each level.")] = True,
    test_set: Annotated[
        str | None, typer.Option(help="Name of the test set; default: the file's, less its suffixes.")
    ] = None,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Write the report as JSON; - for standard output.", metavar="OUT")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write a Pareto plot to PREFIX.png and PREFIX.svg.", metavar="PREFIX")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Write quality and latency into the bundle's manifest.")
    ] = False,
) -> None:
    """Say what is timed and what is not, then measure every level: BLEU with its significance, latency, memory."""
    from rich.console import Console

    from hmc.artifact.errors import InvalidRequestError
    from hmc.benchmark import plots, runner
    from hmc.benchmark.settings import BenchmarkSettings
    from hmc.benchmark.tables import tables
    from hmc.cli.progress import steps

    settings = BenchmarkSettings(
        bundle=bundle,
        src=src,
        ref=ref,
        levels=None if levels.strip() == "all" else tuple(part.strip() for part in levels.split(",") if part.strip()),
        batches=None if batch is None else whole_numbers("--batch", batch),
        beams=whole_numbers("--beam", beam),
        rounds=rounds,
        limit=limit or None,
        latency_limit=latency_limit,
        device=device,
        threads=threads,
        workers=workers,
        memory=memory,
        test_set_name=test_set,
    )
    _check_outputs(settings, json_out, plot, record=record)
    to_stdout = json_out == Path("-")
    console, people = Console(stderr=True), Console(stderr=to_stdout)
    if not people.is_terminal:
        people.width = max(people.width, 200)  # a file or a pipe has room for every column
    with steps(console) as progress:
        report = runner.run_benchmark(
            settings,
            say=lambda text: people.print(text + "\n", highlight=False, markup=False, soft_wrap=True),
            progress=progress,
        )
    if json_out is not None and not to_stdout:  # first: whatever fails from here on, the measurement is kept
        try:
            json_out.write_text(report.to_json(), encoding="utf-8")
        except OSError as error:
            raise InvalidRequestError(f"--json {json_out}: cannot be written: {error.strerror}") from error
    if to_stdout:
        typer.echo(report.to_json(), nl=False)
    people.print(tables(report))
    if record:
        runner.record(bundle, report)
        people.print(f"recorded in {bundle / 'bundle.json'}", highlight=False, markup=False, soft_wrap=True)
    if plot is not None:
        paths = plots.write_pareto(report, plot)
        people.print(f"plot: {', '.join(map(str, paths))}", highlight=False, markup=False, soft_wrap=True)


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """`1,32` → (1, 32). Raises InvalidRequestError."""
    from hmc.artifact.errors import InvalidRequestError

    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise InvalidRequestError(f"{option} {text!r}: write whole numbers with commas, e.g. 1,32") from error


def _check_outputs(settings: BenchmarkSettings, json_out: Path | None, plot: Path | None, *, record: bool) -> None:
    """What would fail at the end of a long measurement, or destroy what it reads, is refused before it."""
    from hmc.artifact.errors import InvalidRequestError
    from hmc.benchmark.plots import require_matplotlib
    from hmc.cli.outputs import check_file, check_folder, check_not_read

    read = [settings.bundle, settings.src, *([settings.ref] if settings.ref else [])]
    if record:
        check_folder("--record", settings.bundle)
    if json_out is not None and json_out != Path("-"):
        check_file("--json", json_out)
        check_not_read("--json", json_out, read)
    if plot is not None:
        if not plot.name:
            raise InvalidRequestError(f"--plot {plot}: give the beginning of a file's name, such as results/pareto")
        for suffix in (".png", ".svg"):
            check_file("--plot", image := plot.with_name(plot.name + suffix))
            check_not_read("--plot", image, read)
            if json_out is not None and os.path.realpath(image) == os.path.realpath(json_out):
                raise InvalidRequestError(f"--plot would write {image}, which is --json's file too")
        require_matplotlib()
        if settings.ref is None:
            raise InvalidRequestError("--plot shows BLEU against latency: give references with --ref FILE")

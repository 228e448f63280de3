"""`hmc bench run`: quality, latency and memory of a bundle's levels, side by side."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmc.cli.common.options import opt

if TYPE_CHECKING:
    from hmc.benchmark.settings import BenchmarkSettings

QUALITY = "Levels and test set"
LATENCY = "What is timed"
DEVICE = "Device"
OUTPUT = "Output"
PEERS = "Other engines"
LOAD = "Load"


def command(
    bundle: Annotated[Path, typer.Argument(help="Directory that `hmc compile` wrote.", metavar="BUNDLE")],
    source: Annotated[
        Path | None,
        opt(
            QUALITY,
            "Source sentences, one a line; plain or .gz. Needed unless --test-set names a set of sacreBLEU.",
            metavar="FILE",
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        opt(
            QUALITY,
            "Their reference translations, line for line. Without them quality is not measured.",
            metavar="FILE",
        ),
    ] = None,
    levels: Annotated[
        str,
        opt(
            QUALITY,
            "Level names separated by commas, or all. With --reference the reference level, `full`, is measured too.",
        ),
    ] = "all",
    sentences: Annotated[int, opt(QUALITY, "Read only the first N sentence pairs. 0: all.", metavar="N")] = 0,
    test_set: Annotated[
        str | None,
        opt(
            QUALITY,
            "With --source: name of the test set in the report; default: the name of the source file without its "
            "suffixes. Without --source: a set of sacreBLEU that is on this machine, such as wmt20.",
            metavar="NAME",
        ),
    ] = None,
    batch: Annotated[
        str | None, opt(LATENCY, "Sentences of one request; separate several sizes with commas. Default: 1,32.")
    ] = None,
    beam: Annotated[str, opt(LATENCY, "Beam size; separate several with commas.")] = "1,4",
    rounds: Annotated[
        int, opt(LATENCY, "Times that each level translates the timed sentences. Each round measures every level.")
    ] = 6,
    latency_limit: Annotated[
        int, opt(LATENCY, "Time only the first N sentences. Quality is always measured on all.", metavar="N")
    ] = 128,
    memory: Annotated[
        bool,
        opt(
            LATENCY,
            "Measure the peak memory and the cold start of each level, in a process of its own.",
            "--memory/--no-memory",
        ),
    ] = True,
    device: Annotated[str, opt(DEVICE, "auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int, opt(DEVICE, "Threads of each level. 0: one for each physical core.")] = 0,
    workers: Annotated[int, opt(DEVICE, "Batches that a level runs at the same time, each on --threads threads.")] = 1,
    peers: Annotated[
        str,
        opt(
            PEERS,
            "Other engines to measure with the same weights: ctranslate2, transformers, optimum; separate several "
            "with commas.",
        ),
    ] = "",
    checkpoint: Annotated[
        Path | None,
        opt(PEERS, "With --peers: the checkpoint that the bundle was compiled from.", metavar="DIR", needs="peers"),
    ] = None,
    load: Annotated[
        float | None,
        opt(
            LOAD,
            "Add a load curve of each level: search the rate at which 99 % of the calls are answered within MS "
            "milliseconds.",
            metavar="MS",
        ),
    ] = None,
    load_seconds: Annotated[
        float | None, opt(LOAD, "With --load: time of each rate, in seconds.", needs="load", show_default="10.0")
    ] = None,
    out: Annotated[
        Path | None,
        opt(
            OUTPUT,
            "Write the report to this file, as JSON: every time and every translation, settings, machine, commit.",
            "--out",
            "-o",
            metavar="FILE",
        ),
    ] = None,
    html: Annotated[
        Path | None, opt(OUTPUT, "Write the report to this file, as one page for a browser.", metavar="FILE")
    ] = None,
    plot: Annotated[
        Path | None, opt(OUTPUT, "Draw BLEU against speed into this file, an SVG picture.", metavar="FILE")
    ] = None,
    record: Annotated[
        bool,
        opt(
            OUTPUT,
            "Write quality and latency into the bundle's manifest, where `hmc serve` finds them. Refused if fewer "
            "sentences or another beam would replace a recorded quality.",
            "--record",
        ),
    ] = False,
    as_json: Annotated[bool, opt(OUTPUT, "Print the report as JSON, not as tables.", "--json")] = False,
) -> None:
    """Measure the levels of a bundle: BLEU with its significance, latency and memory.

    Before the measurement the command prints what is timed and what is not. Afterwards it prints what the numbers do
    not show.
    """
    from hmc.artifact.storage.files import write_whole
    from hmc.benchmark import runner
    from hmc.benchmark.report.html import page
    from hmc.benchmark.report.picture import write_picture
    from hmc.benchmark.report.tables import tables
    from hmc.benchmark.settings import BenchmarkSettings
    from hmc.cli.common.consoles import note, open_console
    from hmc.cli.common.options import listed, numbers
    from hmc.cli.common.progress import steps

    if source is None:
        source, reference = _named_set(bundle, test_set, reference)
    settings = BenchmarkSettings(
        bundle=bundle,
        src=source,
        ref=reference,
        levels=None if levels.strip() == "all" else listed(levels),
        batches=None if batch is None else numbers("--batch", batch, int, "1,32"),
        beams=numbers("--beam", beam, int, "1,4"),
        rounds=rounds,
        limit=sentences or None,
        latency_limit=latency_limit,
        device=device,
        threads=threads,
        workers=workers,
        memory=memory,
        test_set_name=test_set,
        peers=listed(peers),
        checkpoint=checkpoint,
        load_ms=load,
        load_seconds=10.0 if load_seconds is None else load_seconds,
    )
    _check_outputs(settings, {"--out": out, "--html": html}, plot, record=record)
    console = open_console(stderr=as_json)
    with steps(open_console(stderr=True)) as progress:
        report = runner.run_benchmark(
            settings, say=lambda text: note(console, text + "\n"), progress=progress, expect=progress.expect
        )
    if as_json:  # what was measured is printed first, so that no later step can lose it
        typer.echo(report.to_json(), nl=False)
    console.print(tables(report))
    if out is not None:
        write_whole(out, report.to_json())
    if html is not None:
        write_whole(html, page(report))
    if record:
        runner.record(bundle, report)
        note(console, f"recorded in {bundle / 'bundle.json'}")
    if plot is not None:
        note(console, f"picture: {write_picture(report, plot)}")


def _named_set(bundle: Path, name: str | None, ref: Path | None) -> tuple[Path, Path]:
    """The files of a test set of sacreBLEU in the languages of the bundle."""
    from hmc.artifact.bundle.manifest import read_manifest
    from hmc.artifact.errors import InvalidRequestError
    from hmc.benchmark.measure.text import named_test_set

    if name is None:
        raise InvalidRequestError("give sentences with --source FILE, or name a set of sacreBLEU with --test-set")
    if ref is not None:
        raise InvalidRequestError("--reference belongs to --source: a test set of sacreBLEU brings its own references")
    manifest = read_manifest(bundle)
    return named_test_set(name, f"{manifest.source_language}-{manifest.target_language}")


def _check_outputs(
    settings: BenchmarkSettings, files: dict[str, Path | None], plot: Path | None, *, record: bool
) -> None:
    """Refuses, before the long measurement, outputs that cannot be written or that would overwrite an input."""
    from hmc.artifact.errors import InvalidRequestError
    from hmc.benchmark.runner import check_recordable
    from hmc.cli.common.outputs import check_file, check_folder, check_not_read, say_replaced_files

    read = [path for path in (settings.bundle, settings.src, settings.ref, settings.checkpoint) if path is not None]
    if record:
        check_folder("--record", settings.bundle)
        check_recordable(settings)
    written: dict[str, str] = {}

    def check(option: str, file: Path) -> None:
        check_file(option, file)
        check_not_read(option, file, read)
        if other := written.get(os.path.realpath(file)):
            raise InvalidRequestError(f"{option} would write {file}, which is {other}'s file too")
        written[os.path.realpath(file)] = option

    for option, file in files.items():
        if file is not None:
            check(option, file)
    if plot is not None:
        if plot.suffix != ".svg":
            raise InvalidRequestError(f"--plot {plot}: the picture is SVG; give a name that ends in .svg")
        check("--plot", plot)
        if settings.ref is None:
            raise InvalidRequestError("--plot shows BLEU against speed: give references with --reference FILE")
    say_replaced_files((option, Path(file)) for file, option in written.items())

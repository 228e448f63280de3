"""`hmc levels`: the levels of a bundle, or of a running server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmc.cli.common.options import (
    NO_TLS,
    WHERE,
    Server,
    Tls,
    Token,
    check_no_server_options,
    chosen_server,
    opt,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hmc.serving.requests.results import LevelBytes, LevelInfo, LevelList


def command(
    bundle: Annotated[Path | None, typer.Argument(help="Directory that `hmc compile` wrote.", metavar="BUNDLE")] = None,
    server: Server = None,
    model: Annotated[str | None, opt(WHERE, "With --server: name of the model. Default: the server's first.")] = None,
    token: Token = None,
    tls: Tls = NO_TLS,
    timeout: Annotated[
        float | None, opt(WHERE, "Seconds to wait for the server's answer.", show_default="10.0")
    ] = None,
    program: Annotated[
        str | None,
        opt(
            "Output",
            "Print what this level of BUNDLE computes, a sub-layer a line; with --json, every operation.",
            metavar="LEVEL",
        ),
    ] = None,
    json_output: Annotated[bool, opt("Output", "Print the levels as JSON.", "--json")] = False,
) -> None:
    """List the levels of a bundle, or of a running server: heads, size, quality and latency.

    The column MiB is the size on disk: files of this level alone + files that it shares with other levels.

    With --server, the size in memory is listed too, and as `live` the times of answered calls. All
    other times come from the bundle.
    """
    from hmc.cli.common.consoles import levels_as_json, open_console
    from hmc.cli.common.texts.lines import check_stdout

    check_stdout()
    server = chosen_server(server, bundle, "BUNDLE (a directory)")
    if bundle is not None:
        check_no_server_options("BUNDLE", token=token, tls=tls, timeout=timeout, model=model)
    if program is not None:
        _print_program(bundle, program, json_output)
        return
    if bundle is not None:
        levels = _of_bundle(bundle)
    else:
        levels = _of_server(str(server), model, token, tls, 10.0 if timeout is None else timeout)
    if json_output:
        typer.echo(levels_as_json(levels))
        return
    _show(open_console(), levels, [_executors(bundle)] if bundle is not None else [])


def _executors(bundle: Path) -> str:
    """What runs which level on a CPU of this machine."""
    from hmc.artifact.bundle.manifest import read_manifest
    from hmc.engine.native import library
    from hmc.engine.support import executor_of

    built = library.best() is not None
    native = [
        level.name
        for level in read_manifest(bundle).levels
        if executor_of(level, "auto", cpu=True, native=built) == "native"
    ]
    if native:
        return f"On a CPU the native executor runs {', '.join(native)}; ONNX Runtime runs all others."
    why = "" if built else ": this installation has no native executor"
    return f"ONNX Runtime runs all levels{why}."


def _print_program(bundle: Path | None, level: str, json_output: bool) -> None:
    """Prints the step program of a level. Raises InvalidRequestError where there is none."""
    from hmc.artifact.bundle.manifest import read_manifest
    from hmc.artifact.errors import InvalidRequestError
    from hmc.artifact.program.listing import describe
    from hmc.artifact.program.operations import program_json, program_path, read_program

    if bundle is None:
        raise InvalidRequestError("--program reads a bundle, not a server: give BUNDLE")
    manifest = read_manifest(bundle)
    chosen = manifest.level(level)
    if program_path(level) not in chosen.files:
        raise InvalidRequestError(
            f"level {level!r} has no step program: it was compiled before HMC had step programs, or its "
            "weights have 4 bits; ONNX Runtime serves it"
        )
    found = read_program(bundle, level)
    if json_output:
        typer.echo(program_json(found).decode())
        return
    typer.echo("\n".join(describe(found, manifest.architecture)))
    wider = sum(place.bytes for place in found.tensors.values() if place.file not in chosen.files)
    if wider:
        typer.echo(f"{wider / 2**20:.1f} MiB of these weights are the first rows and columns of wider levels' matrices")


def _of_server(address: str, model: str | None, token: str | None, tls: Tls, timeout: float) -> LevelList:
    from hmc.cli.common.options import connected

    with connected(address, token, tls) as client:
        return client.levels(timeout=timeout, model=model)


def _of_bundle(path: Path) -> LevelList:
    from hmc.artifact.bundle.manifest import FIX, read_manifest
    from hmc.artifact.bundle.order import order
    from hmc.artifact.errors import InvalidArtifactError
    from hmc.serving.levels.memory import disk_shares
    from hmc.serving.requests.results import LevelInfo, LevelList

    manifest = read_manifest(path)
    try:
        disk = disk_shares(path, manifest)
    except OSError as error:
        raise InvalidArtifactError(f"bundle {path}", [f"{error.filename} is missing"], FIX) from error
    infos = [
        LevelInfo.of(x, is_default=x.name == manifest.default_level, disk=disk[x.name]) for x in order(manifest.levels)
    ]
    return LevelList(tuple(infos), manifest.version, manifest.source_language, manifest.target_language)


SPARED = (("parameters", "chrF"), ("enc/dec/cross", "p95 ms", "live p95 ms"))
"""Columns that narrow terminals go without: first these, then those too. On still narrower ones a level has lines."""


def _show(console: Console, levels: LevelList, executors: list[str]) -> None:
    """Prints the title, the levels, in a form that the console has room for, and notes. Nothing is cut."""
    from rich.measure import Measurement
    from rich.padding import Padding
    from rich.text import Text

    from hmc.artifact.bundle.order import unfinished

    where = f" on {levels.device}" if levels.device else ""
    console.print(Text(f"{levels.source_language} → {levels.target_language}, bundle {levels.bundle_version}{where}"))
    columns = _columns(levels)
    spared: set[str] = set()
    endless = console.options.update(width=10_000)
    for more in ((), *SPARED):
        spared.update(more)
        table = _table({name: cells for name, cells in columns.items() if name not in spared})
        if Measurement.get(console, endless, table).maximum <= console.width:
            console.print(table)
            break
    else:
        for names in zip(*columns.values(), strict=True):
            values = dict(zip(columns, names, strict=True))
            console.print(Text(values.pop("level"), style="bold"))
            said = [f"{name} {value}".replace(" ", "\u00a0") for name, value in values.items() if value != "–"]
            console.print(Padding(Text("   ".join(said)), (0, 0, 0, 2)), highlight=False)
    notes = [*_measured(levels), *filter(None, [unfinished(levels.levels)])]
    if levels.memory_bytes:
        notes.append(f"The server's process has {levels.memory_bytes / 2**20:.0f} MiB in memory.")
    for line in (*notes, *executors, *_order(levels), *_devices(levels)):
        console.print(Text(line, style="italic"))


def _columns(levels: LevelList) -> dict[str, list[str]]:
    """The cells of each column, a level each."""
    names = ["level", "precision", "heads", "enc/dec/cross", "parameters", "MiB", "BLEU", "Δ BLEU (95 %)", "chrF"]
    names += ["p50 ms", "p95 ms"]
    live = any(level.latency for level in levels.levels)
    if live:
        names += ["live p50 ms", "live p95 ms", "live calls"]
    on_gpu = any(level.device_memory for level in levels.levels)
    if levels.device:
        names += ["MiB in memory", *(["MiB on GPU"] if on_gpu else []), "serves"]
    rows = []
    for level in levels.levels:
        memory = [_mebibytes(level.memory), *([_mebibytes(level.device_memory)] if on_gpu else [])]
        served = [*memory, _serves(level, levels.device)] if levels.device else []
        rows.append([*_row(level), *(_live(level) if live else []), *served])
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}


def _table(columns: dict[str, list[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in columns:
        right = name not in ("level", "precision", "serves")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(Text, row))
    return table


def _order(levels: LevelList) -> Iterator[str]:
    """Notes on the order of levels: which are chosen by name only, and which were not timed."""
    if beaten := [f"{level.name} ({level.beaten_by})" for level in levels.levels if level.beaten_by]:
        yield f"Chosen by name only, because another level is as good and as fast: {', '.join(beaten)}."
    if estimated := [level.name for level in levels.levels if level.estimated]:
        yield f"Not timed, or not as steadily as the others, so a cost model ranks them: {', '.join(estimated)}."


def _devices(levels: LevelList) -> Iterator[str]:
    """Notes on the memory of CUDA devices."""
    for use in levels.devices:
        most = f" of at most {use.budget / 2**20:.0f}" if use.budget else ""
        free = f"; {use.free / 2**20:.0f} MiB are free" if use.free else ""
        yield f"{use.device}: weights and caches have {use.reserved / 2**20:.0f}{most} MiB{free}."


def _measured(levels: LevelList) -> Iterator[str]:
    """Notes on what was scored and timed. They say so if scores or times cannot be compared."""
    scored: dict[str, list[str]] = {}
    timed: dict[str, list[str]] = {}
    for level in levels.levels:
        quality = level.quality
        recorded = level.recorded_latency
        if quality:
            of = f"{quality.test_set}, {quality.sentences} sentences, beam {quality.beam}"
            scored.setdefault(of, []).append(level.name)
        if recorded:
            of = f"requests of {recorded.batch} at beam {recorded.beam} on {recorded.machine}"
            timed.setdefault(of, []).append(level.name)
    for what, found in (("BLEU and chrF", scored), ("Times", timed)):
        if len(found) == 1:
            yield f"{what}: {next(iter(found))}."
        elif found:
            several = "; ".join(f"{', '.join(names)}: {of}" for of, names in found.items())
            yield f"{what} of different measurements, not to be compared: {several}."


def _row(level: LevelInfo) -> list[str]:
    name = f"{level.name} (default)" if level.is_default else level.name
    kinds = "/".join(str(sum(level.heads_by_kind.get(k, []))) for k in ("encoder_self", "decoder_self", "cross"))
    size = _mebibytes(level.disk) if level.disk else f"{level.bytes / 2**20:.1f}"
    row = [name, level.precision, str(level.heads), kinds, f"{level.parameters:,}", size]
    quality = level.quality
    latency = level.recorded_latency
    if quality:
        interval = f"{quality.bleu_delta:+.2f} ({quality.ci_low:+.2f} to {quality.ci_high:+.2f})"
        row += [f"{quality.bleu:.2f}", interval, f"{quality.chrf:.2f}"]
    else:
        row += ["–"] * 3
    return row + ([f"{latency.p50_ms:.1f}", f"{latency.p95_ms:.1f}"] if latency else ["–"] * 2)


def _live(level: LevelInfo) -> list[str]:
    """Times of the calls that the server has answered at this level, and how many they are."""
    at = level.latency
    return [f"{at.p50_ms:.1f}", f"{at.p95_ms:.1f}", str(at.requests)] if at else ["–"] * 3


def _mebibytes(shares: LevelBytes | None) -> str:
    """`OWN + SHARED` in MiB."""
    return f"{shares.own / 2**20:.1f} + {shares.shared / 2**20:.1f}" if shares else "–"


def _serves(level: LevelInfo, device: str) -> str:
    """device: of all levels, which the table's title names."""
    if not level.loaded:
        return "not loaded"
    return f"on {level.device}" if level.device and level.device != device else "yes"

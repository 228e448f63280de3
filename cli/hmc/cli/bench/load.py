"""`hmc bench load`: calls at a server at times fixed beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hmc.cli.common.options import SERVER, WHERE, TlsCa, Token, check_unused, numbers, opt

WHAT = "What is sent"
WHEN = "When"
OUTPUT = "Output"


def command(
    server: Annotated[str, SERVER],
    source: Annotated[Path, opt(WHAT, "Texts, one a line; each call has one.", metavar="FILE")],
    level: Annotated[
        str | None, opt(WHAT, "Level, or auto to leave it to the server. Default: the server's default level.")
    ] = None,
    beam: Annotated[int, opt(WHAT, "Beam size.")] = 4,
    rate: Annotated[
        str,
        opt(
            WHEN,
            "Calls a second; separate several with commas. Stops after the first rate that misses the objective. "
            "Without this option, the highest rate that keeps it is searched.",
        ),
    ] = "",
    arrivals: Annotated[
        str, opt(WHEN, "poisson (at random), constant, or a file of times in seconds, one a line.")
    ] = "poisson",
    seconds: Annotated[float | None, opt(WHEN, "Time of each rate.", show_default="20.0")] = None,
    objective: Annotated[float, opt(WHEN, "Milliseconds in which a call has to be answered.", metavar="MS")] = 1000.0,
    share: Annotated[float, opt(WHEN, "Share of the calls that have to be answered within --objective.")] = 0.99,
    timeout: Annotated[float, opt(WHEN, "Seconds after which a call fails.")] = 30.0,
    seed: Annotated[int | None, opt(WHEN, "With poisson: seed of the random times.", show_default="1")] = None,
    connections: Annotated[int, opt(WHERE, "Connections, which calls use in turn.")] = 8,
    token: Token = None,
    tls_ca: TlsCa = None,
    out: Annotated[
        Path | None, opt(OUTPUT, "Write every call to this file, as JSON.", "--out", "-o", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, opt(OUTPUT, "Print the result as JSON.", "--json")] = False,
) -> None:
    """Put load on a running server, in an open loop: calls come when they are due, answered or not.

    Latency counts from when a call was due, so a server that stalls delays every call that was due meanwhile. Answered,
    refused and failed calls are counted apart. A rate is held if enough calls are answered in time (--share). A run is
    stopped when its rate can no longer be held.
    """
    import asyncio
    from dataclasses import asdict

    from hmc.artifact.storage.files import write_whole
    from hmc.benchmark.load.open_loop import ARRIVALS
    from hmc.benchmark.load.results import LatencyObjective
    from hmc.benchmark.load.server_load import LoadSettings, load_server
    from hmc.benchmark.measure.text import read_sentences
    from hmc.benchmark.report.results import json_text
    from hmc.benchmark.report.tables import load_table
    from hmc.cli.common.consoles import note, open_console
    from hmc.cli.common.outputs import check_file, check_not_read, say_replaced_files
    from hmc.cli.common.progress import steps

    kinds = {str(name): name for name in ARRIVALS}
    if arrivals not in kinds:
        check_unused(f"has no effect on the times of {arrivals}: leave it out", seconds=seconds)
    if arrivals != "poisson":
        check_unused(f"is for random times, and --arrivals {arrivals} has none: leave it out", seed=seed)
    settings = LoadSettings(
        level=level,
        beam=beam,
        rates=numbers("--rate", rate, float, "10,20,40"),
        arrivals=kinds.get(arrivals, "poisson"),
        trace=None if arrivals in kinds else Path(arrivals),
        seconds=20.0 if seconds is None else seconds,
        objective=LatencyObjective(objective, share),
        deadline_s=timeout,
        seed=1 if seed is None else seed,
        connections=connections,
        token=token,
        tls_ca=tls_ca,
    )
    texts = [text for text in read_sentences(source) if text.strip()]
    if out is not None:
        check_file("--out", out)
        check_not_read("--out", out, [source])
        say_replaced_files([("--out", out)])
    console = open_console(stderr=as_json)
    with steps(open_console(stderr=True)) as progress:
        curve = asyncio.run(load_server(server, texts, settings, progress))
    result = json_text({**asdict(curve), "saturation": curve.saturation, "notes": curve.notes})
    if as_json:
        typer.echo(result, nl=False)
    console.print(load_table(curve))
    for line in curve.notes:
        note(console, line)
    if out is not None:
        write_whole(out, result)

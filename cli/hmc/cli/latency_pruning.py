"""`hmc prune --target-speedup`: options to arguments, and what was reached as a table or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hmc.cli.common.options import listed

if TYPE_CHECKING:
    from hmc.training.pruning.settings import PruneSettings


def prune_by_latency(
    checkpoint: Path,
    out: Path,
    settings: PruneSettings,
    targets: tuple[str, str],
    serving: tuple[str, str, int, int, int],
    text: tuple[Sequence[str], str | None, Sequence[Path]],
    table: Path | None,
    as_json: bool,
    *,
    control: bool = False,
) -> None:
    """Carries out the command.

    targets: speed-ups and milliseconds, as users write them. serving: device, precision, batch, beam and threads with
    which the model will be served. text: training corpora, dev corpus and files of source text.
    """
    import json
    from dataclasses import asdict
    from functools import partial
    from typing import cast

    from hmc.artifact.errors import InvalidRequestError
    from hmc.artifact.precisions import PRECISIONS, Precision
    from hmc.benchmark.budget.latency_table import Serving
    from hmc.cli.common.consoles import open_console
    from hmc.cli.common.progress import translating
    from hmc.engine.requests.options import MAX_BEAM
    from hmc.pipelines.pruning.latency import SENTENCES, Targets, prune_to_latency
    from hmc.training.runs.folder import working_in

    where, precision, batch, beam, threads = serving
    if where not in ("here", "cpu", "cuda"):
        raise InvalidRequestError(f"--serve {where}: choose here, cpu or cuda")
    if precision not in PRECISIONS:
        raise InvalidRequestError(f"--serve-precision {precision}: choose {', '.join(PRECISIONS)}")
    for name, value, least in (("batch", batch, 1), ("beam", beam, 1), ("threads", threads, 0)):
        if value < least:
            raise InvalidRequestError(f"--serve-{name} {value}: choose {least} or more")
    for name, value, most in (("batch", batch, SENTENCES), ("beam", beam, MAX_BEAM)):
        if value > most:
            raise InvalidRequestError(f"--serve-{name} {value}: choose {most} or less")
    wanted = Targets(
        quantities(targets[0], "--target-speedup", "x"), quantities(targets[1], "--target-latency-ms", "ms")
    )
    corpora, dev, source = text
    console = open_console(stderr=True)
    with working_in(out):
        reached = prune_to_latency(
            checkpoint,
            out,
            settings,
            wanted,
            Serving(cast(Precision, precision), batch, beam, threads, on=where),  # type: ignore[arg-type]  # checked above
            train=corpora,
            dev=dev,
            source=source,
            table_file=table,
            control=control,
            say=lambda line: console.print(line, markup=False, soft_wrap=True),
            phase=partial(translating, console),
        )
    if as_json:
        typer.echo(json.dumps([asdict(level) | {"kept": level.kept} for level in reached], indent=1))
        return
    for level in reached:
        goal = ""
        if level.goal_ms is not None:
            kept = "" if level.kept else ", NOT kept"
            goal = f" (wanted {level.goal_ms:.2f} ms{kept})"
        typer.echo(f"{level.name}: {level.ms:.2f} ms{goal}, {level.speedup:.2f}x  {level.sizes}")
        typer.echo(f"  {level.checkpoint}")


def quantities(text: str, option: str, unit: str) -> tuple[float, ...]:
    """Reads `2x`, `1.5x,2` or `12.5ms`. Raises InvalidRequestError for anything but positive numbers."""
    from math import isfinite

    from hmc.artifact.errors import InvalidRequestError

    found = []
    for word in listed(text):
        try:
            value = float(word.removesuffix(unit))
        except ValueError:
            value = -1.0
        if not (isfinite(value) and value > 0):
            raise InvalidRequestError(f"{option} {text!r}: {word!r} is not a positive number; write 2{unit} or 2")
        found.append(value)
    return tuple(found)

"""`hmc prune --target-speedup`: options to arguments, and what was reached as a table or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import BeforeValidator, Field, NonNegativeInt

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.precisions import Precision
from hmc.artifact.settings import SettingsModel
from hmc.cli.common.options import listed
from hmc.engine.requests.options import MAX_BEAM

if TYPE_CHECKING:
    from hmc.training.pruning.settings import PruneSettings


def _quantities(text: Any, unit: str) -> Any:
    """Reads `2x`, `1.5x,2` or `12.5ms`. Raises ValueError for anything but positive numbers."""
    found = []
    for word in listed(text):
        try:
            value = float(word.removesuffix(unit))
        except ValueError:
            value = -1.0
        if not (isfinite(value) and value > 0):
            raise ValueError(f"{word!r} is not a positive number; write 2{unit} or 2")
        found.append(value)
    return found


class LatencySettings(SettingsModel):
    """What to remove by latency, and how the model will be served."""

    target_speedup: Annotated[tuple[float, ...], BeforeValidator(partial(_quantities, unit="x")), "FACTOR"] = ()
    """Instead of budgets: how much faster the model shall be, such as 2x, or several: 1.5x,2x. Heads, neurons, whole
    attentions and whole layers close together, each weighed by what it costs."""
    target_latency_ms: Annotated[tuple[float, ...], BeforeValidator(partial(_quantities, unit="ms")), "MS"] = ()
    """The same as milliseconds of one request, such as 12.5, or several: 20,12.5."""
    serve: Literal["here", "cpu", "cuda"] = "here"
    """Where the model will be served. here: models are timed on this machine's CPU. cpu or cuda: nothing is timed; the
    latency is calculated from the operations, bytes and products of step programs, at rough speeds of such a device."""
    serve_precision: Precision | None = None
    """Precision that the model is served at. Default: int8, and fp16 with --serve cuda."""
    serve_batch: Annotated[int, Field(ge=1), "N"] = 1
    """Sentences of a request."""
    serve_beam: Annotated[int, Field(ge=1, le=MAX_BEAM), "N"] = 4
    """Beam of the search."""
    serve_threads: Annotated[NonNegativeInt, "N"] = 0
    """Threads that serve it; 0 is one per physical core."""
    latency_table: Annotated[Path | None, "FILE"] = None
    """Latency table that an earlier run on this machine wrote (DIR/latency.json). Without this option the table is
    measured first."""


def prune_by_latency(
    checkpoint: Path,
    out: Path,
    settings: PruneSettings,
    latency: LatencySettings,
    text: tuple[Sequence[str], str | None, Sequence[Path]],
    as_json: bool,
    *,
    control: bool = False,
) -> None:
    """Carries out the command. text: training corpora, dev corpus and files of source text."""
    import json
    from dataclasses import asdict

    from hmc.benchmark.budget.latency_table import Serving
    from hmc.cli.common.consoles import open_console
    from hmc.cli.common.progress import translating
    from hmc.pipelines.pruning.latency import SENTENCES, Targets, prune_to_latency
    from hmc.training.runs.folder import working_in

    if latency.serve_batch > SENTENCES:
        raise InvalidRequestError(f"serve_batch {latency.serve_batch}: choose {SENTENCES} or less")
    corpora, dev, source = text
    precision = latency.serve_precision or ("fp16" if latency.serve == "cuda" else "int8")
    console = open_console(stderr=True)
    with working_in(out):
        reached = prune_to_latency(
            checkpoint,
            out,
            settings,
            Targets(latency.target_speedup, latency.target_latency_ms),
            Serving(precision, latency.serve_batch, latency.serve_beam, latency.serve_threads, on=latency.serve),
            train=corpora,
            dev=dev,
            source=source,
            table_file=latency.latency_table,
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

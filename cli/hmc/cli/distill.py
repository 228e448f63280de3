"""`hmc distill`: plain source text in, a teacher's translations of it out, as parallel text for training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hmc.cli.common.options import check_unused, given_options, opt, options_of

TEXT = "Text"
FILTER = "What is dropped"
OUTPUT = "Output"
PANELS = {
    "max_length": TEXT,
    "beam": "Search",
    "precision": "Where it runs",
    "shard_lines": OUTPUT,
    "max_length_ratio": FILTER,
}


def setting_options() -> type:
    """The settings that are options under their own names."""
    from hmc.pipelines.distillation.filters import Filters
    from hmc.pipelines.distillation.settings import DistillSettings

    fields = DistillSettings.model_fields | Filters.model_fields
    del fields["deduplicate"], fields["keep"]
    return options_of(fields, PANELS)


def command(
    checkpoint: Annotated[
        Path, typer.Argument(help="The teacher: a checkpoint, or a MarianMT directory.", metavar="CHECKPOINT")
    ],
    source: Annotated[
        list[Path], opt(TEXT, "Source text, plain or .gz, one sentence a line. Repeatable.", metavar="FILE")
    ],
    out: Annotated[
        Path,
        opt(
            OUTPUT,
            "Folder to write. The same command again goes on with an interrupted run.",
            "--out",
            "-o",
            metavar="DIR",
        ),
    ],
    reference: Annotated[
        list[Path] | None,
        opt(
            TEXT,
            "With --n-best: human translations of --source, line for line; the training text gets the "
            "translation that is closest to them. Once for each --source.",
            metavar="FILE",
        ),
    ] = None,
    dev: Annotated[
        int, opt(TEXT, "Sentence pairs to hold out as dev text, spread evenly; at most a tenth of all.", metavar="N")
    ] = 0,
    keep_duplicates: Annotated[
        bool, opt(TEXT, "Translate a source line each time that it occurs.", "--keep-duplicates")
    ] = False,
    keep: Annotated[
        list[str] | None,
        opt(
            FILTER,
            "Do not drop translations for this reason: unfinished, copy, loop or length_ratio. Repeatable.",
            metavar="REASON",
        ),
    ] = None,
    as_json: Annotated[bool, opt(OUTPUT, "Print the result as JSON.", "--json")] = False,
    *,
    options: Annotated[Any, setting_options],
) -> None:
    """Translate plain text with a model, as training text for a smaller one (sequence-level knowledge distillation).

    The result is DIR/train.source.txt and DIR/train.target.txt, which `hmc train` and `hmc prune` read.
    """
    import json

    from hmc.artifact.stopping import stoppable
    from hmc.cli.common.consoles import open_console
    from hmc.cli.common.outputs import check_run_folder
    from hmc.cli.common.progress import translating
    from hmc.pipelines.distillation.filters import Filters
    from hmc.pipelines.distillation.run import distill
    from hmc.pipelines.distillation.settings import DistillSettings

    check_run_folder(out)
    given = given_options(options)
    kept = keep or []
    if "length_ratio" in kept:
        reason = "drops nothing with --keep length_ratio: leave one of them out"
        check_unused(reason, max_length_ratio=options.max_length_ratio)
    if "loop" in kept:
        check_unused("drops nothing with --keep loop: leave one of them out", max_repeats=options.max_repeats)
    limits = {name: given.pop(name) for name in Filters.model_fields if name in given}
    filters = Filters(**limits, keep=kept)  # type: ignore[arg-type]  # checked there
    settings = DistillSettings(deduplicate=not keep_duplicates, **given)
    said = f"what is in {out} is kept; the same command goes on"  # while it reads the text: then `distill` says more
    with stoppable(lambda: said), translating(open_console(stderr=True)) as (report, step):
        found = distill(
            checkpoint,
            source,
            out,
            settings,
            filters,
            held_out=dev,
            references=reference or (),
            report=report,
            step=step,
        )
    if as_json:
        typer.echo(json.dumps(found.to_json() | {"corpus": found.corpus()}, indent=1))
        return
    typer.echo(f"{out}: {found.train:,} sentence pairs" + (f", and {found.dev:,} held out as dev text" if dev else ""))
    for line in found.losses():
        typer.echo(f"  {line}")
    typer.echo(f'Train with it: data.train = ["{found.corpus()}"], or hmc prune --data "{found.corpus()}"')

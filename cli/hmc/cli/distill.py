"""`hmc distill`: plain source text in, a teacher's translations of it out, as parallel text for training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TEXT, SEARCH, FILTER, WHERE, OUTPUT = "Text", "Search", "What is dropped", "Where it runs", "Output"


def command(
    checkpoint: Annotated[
        Path, typer.Argument(help="The teacher: a checkpoint, or a MarianMT directory.", metavar="CHECKPOINT")
    ],
    source: Annotated[
        list[Path],
        typer.Option(
            help="Source text, plain or .gz, one sentence a line. Repeatable.", metavar="FILE", rich_help_panel=TEXT
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="Folder to write. The same command again goes on with an interrupted run.",
            metavar="DIR",
            rich_help_panel=OUTPUT,
        ),
    ],
    reference: Annotated[
        list[Path] | None,
        typer.Option(
            help="With --n-best: human translations of --source, line for line; the training text gets the "
            "translation that is closest to them. Once for each --source.",
            metavar="FILE",
            rich_help_panel=TEXT,
        ),
    ] = None,
    dev: Annotated[
        int,
        typer.Option(
            help="Sentence pairs to hold out as dev text, spread evenly; at most a tenth of all.",
            metavar="N",
            rich_help_panel=TEXT,
        ),
    ] = 0,
    max_length: Annotated[
        int,
        typer.Option(help="Longest source sentence in tokens; longer ones are dropped.", rich_help_panel=TEXT),
    ] = 128,
    keep_duplicates: Annotated[
        bool,
        typer.Option(
            "--keep-duplicates", help="Translate a source line each time that it occurs.", rich_help_panel=TEXT
        ),
    ] = False,
    beam: Annotated[int, typer.Option(help="Hypotheses of the teacher's search.", rich_help_panel=SEARCH)] = 4,
    n_best: Annotated[
        int,
        typer.Option(
            help="Translations kept of each sentence, with their scores; the best one goes into the training text, or "
            "that of --reference.",
            rich_help_panel=SEARCH,
        ),
    ] = 1,
    length_penalty: Annotated[
        float, typer.Option(help="Hypotheses are ranked by log P / length ^ this.", rich_help_panel=SEARCH)
    ] = 1.0,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help="Do not drop translations for this reason: unfinished, copy, loop or length_ratio. Repeatable.",
            metavar="REASON",
            rich_help_panel=FILTER,
        ),
    ] = None,
    max_length_ratio: Annotated[
        float,
        typer.Option(
            help="Drop a pair whose longer side has more tokens than this times the shorter one, plus 5.",
            rich_help_panel=FILTER,
        ),
    ] = 2.5,
    max_repeats: Annotated[
        int,
        typer.Option(
            help="Drop a translation in which a sequence of words follows itself more often than this, unless the "
            "source does the same.",
            rich_help_panel=FILTER,
        ),
    ] = 2,
    precision: Annotated[
        str,
        typer.Option(help="Precision of the teacher. auto: int8, and fp16 on CUDA.", rich_help_panel=WHERE),
    ] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.", rich_help_panel=WHERE)] = "auto",
    workers: Annotated[
        int,
        typer.Option(help="Batches that run at once on a CPU. 0: one for each core.", rich_help_panel=WHERE),
    ] = 0,
    threads: Annotated[int, typer.Option(help="Threads of each worker. 0: one.", rich_help_panel=WHERE)] = 0,
    shard_lines: Annotated[
        int,
        typer.Option(
            help="Source lines in each file of translations; a killed run repeats at most two files.",
            rich_help_panel=OUTPUT,
        ),
    ] = 2000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Translate plain text with a model, as training text for a smaller one (sequence-level knowledge distillation).

    The result is DIR/train.source.txt and DIR/train.target.txt, which `hmc train` and `hmc prune` read.
    """
    import json

    from hmc.cli.common.consoles import open_console
    from hmc.cli.common.outputs import check_run_folder
    from hmc.cli.common.progress import translating
    from hmc.pipelines.distillation.filters import Filters
    from hmc.pipelines.distillation.run import distill
    from hmc.pipelines.distillation.settings import DistillSettings

    check_run_folder(out)
    settings = DistillSettings(
        beam=beam,
        n_best=n_best,
        length_penalty=length_penalty,
        max_length=max_length,
        deduplicate=not keep_duplicates,
        shard_lines=shard_lines,
        precision=precision,
        device=device,
        workers=workers,
        threads=threads,
    )
    filters = Filters(tuple(keep or ()), max_length_ratio, max_repeats)  # type: ignore[arg-type]  # checked there
    with translating(open_console(stderr=True)) as (report, step):
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
    for reason, number in found.dropped.items():
        typer.echo(f"  {number:,} of {found.lines:,} lines dropped: {reason}")
    typer.echo(f'Train with it: data.train = ["{found.corpus()}"], or hmc prune --data "{found.corpus()}"')

"""`hmc distill`: plain source text in, a teacher's translations of it out, as parallel text for training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hmc.cli.common.options import opt

TEXT = "Text"
SEARCH = "Search"
FILTER = "What is dropped"
WHERE = "Where it runs"
OUTPUT = "Output"


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
    max_length: Annotated[int, opt(TEXT, "Longest source sentence in tokens; longer ones are dropped.")] = 128,
    keep_duplicates: Annotated[
        bool, opt(TEXT, "Translate a source line each time that it occurs.", "--keep-duplicates")
    ] = False,
    beam: Annotated[int, opt(SEARCH, "Hypotheses of the teacher's search.")] = 4,
    n_best: Annotated[
        int,
        opt(
            SEARCH,
            "Number of translations that are kept of each sentence, with their scores. The training text gets the "
            "best one, or with --reference the one nearest to the reference.",
        ),
    ] = 1,
    length_penalty: Annotated[float, opt(SEARCH, "Hypotheses are ranked by log P / length ^ this.")] = 1.0,
    keep: Annotated[
        list[str] | None,
        opt(
            FILTER,
            "Do not drop translations for this reason: unfinished, copy, loop or length_ratio. Repeatable.",
            metavar="REASON",
        ),
    ] = None,
    max_length_ratio: Annotated[
        float | None,
        opt(
            FILTER,
            "Drop a pair whose longer side has more tokens than this times the shorter one, plus 5.",
            show_default="2.5",
        ),
    ] = None,
    max_repeats: Annotated[
        int | None,
        opt(
            FILTER,
            "Drop a translation in which a sequence of words follows itself more often than this, unless the "
            "source does the same.",
            show_default="2",
        ),
    ] = None,
    precision: Annotated[str, opt(WHERE, "Precision of the teacher. auto: int8, and fp16 on CUDA.")] = "auto",
    device: Annotated[str, opt(WHERE, "auto, cpu, cuda or cuda:N.")] = "auto",
    workers: Annotated[int, opt(WHERE, "Batches that run at once on a CPU. 0: one for each core.")] = 0,
    threads: Annotated[int, opt(WHERE, "Threads of each worker. 0: one.")] = 0,
    shard_lines: Annotated[
        int, opt(OUTPUT, "Source lines in each file of translations; a killed run repeats at most two files.")
    ] = 2000,
    as_json: Annotated[bool, opt(OUTPUT, "Print the result as JSON.", "--json")] = False,
) -> None:
    """Translate plain text with a model, as training text for a smaller one (sequence-level knowledge distillation).

    The result is DIR/train.source.txt and DIR/train.target.txt, which `hmc train` and `hmc prune` read.
    """
    import json

    from hmc.artifact.stopping import stoppable
    from hmc.cli.common.consoles import open_console
    from hmc.cli.common.options import check_unused
    from hmc.cli.common.outputs import check_run_folder
    from hmc.cli.common.progress import translating
    from hmc.pipelines.distillation.filters import Filters
    from hmc.pipelines.distillation.run import distill
    from hmc.pipelines.distillation.settings import DistillSettings

    check_run_folder(out)
    kept = keep or []
    if "length_ratio" in kept:
        check_unused("drops nothing with --keep length_ratio: leave one of them out", max_length_ratio=max_length_ratio)
    if "loop" in kept:
        check_unused("drops nothing with --keep loop: leave one of them out", max_repeats=max_repeats)
    filters = Filters(
        tuple(kept),  # type: ignore[arg-type]  # checked there
        Filters.max_length_ratio if max_length_ratio is None else max_length_ratio,
        Filters.max_repeats if max_repeats is None else max_repeats,
    )
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

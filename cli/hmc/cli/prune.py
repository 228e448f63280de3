"""`hmc prune`: a checkpoint in, checkpoints with fewer heads and feed-forward neurons out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hmc.artifact.errors import InvalidRequestError
from hmc.cli.common.options import DRY_RUN, given_options, opt
from hmc.cli.prune_options import (
    DATA,
    OUTPUT,
    BudgetOptions,
    ScheduleOptions,
    check_options,
    latency_options,
    parse_settings,
    setting_options,
)


def command(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="A fully trained checkpoint, as `hmc train` writes it; with --source also a MarianMT directory.",
            metavar="CHECKPOINT",
        ),
    ],
    out: Annotated[
        Path,
        opt(
            OUTPUT,
            "Run folder, with one checkpoint for each budget. The same command again resumes an interrupted run.",
            "--out",
            "-o",
            metavar="DIR",
        ),
    ],
    data: Annotated[
        list[str] | None,
        opt(
            DATA,
            "Training corpus: 'SRC TGT', 'FILE.tsv', 'FILE.jsonl', 'FILE.parquet' or 'hub:NAME'. Repeatable.",
            metavar="CORPUS",
        ),
    ] = None,
    dev: Annotated[str | None, opt(DATA, "Dev corpus, written the same way.", metavar="CORPUS")] = None,
    source: Annotated[
        list[Path] | None,
        opt(
            DATA,
            "Plain source text, or .gz, one sentence a line: the model translates it first, and is pruned with "
            "its own translations. Some are held out as dev text if --dev is not given. Repeatable; --data adds to it.",
            metavar="FILE",
        ),
    ] = None,
    dry_run: Annotated[bool, opt(OUTPUT, DRY_RUN, "--dry-run")] = False,
    as_json: Annotated[bool, opt(OUTPUT, "Print the result as JSON.", "--json")] = False,
    *,
    budget: BudgetOptions,
    options: Annotated[Any, setting_options],
    schedule: ScheduleOptions,
    latency: Annotated[Any, latency_options],
) -> None:
    """Find the heads and neurons that a model needs least, and remove them until exactly the given number is left.

    Each budget gives one checkpoint. With --target-speedup or --target-latency-ms, layers are removed too, until the
    model's latency keeps the target. The method is hard-concrete gates with an L0 penalty (Voita et al. 2019).
    """
    from dataclasses import replace
    from functools import partial

    from hmc.artifact.checkpoint.checkpoint import read_layout
    from hmc.artifact.model.budgets import parse_budgets, parse_kinds
    from hmc.artifact.model.ffn import parse_neuron_budgets
    from hmc.cli.common.consoles import note, show_checkpoints, show_plan
    from hmc.cli.common.outputs import check_run_folder
    from hmc.cli.latency_pruning import LatencySettings, prune_by_latency
    from hmc.training.pruning.control import compared
    from hmc.training.pruning.request import PruneRequest, check_request, plan_pruning
    from hmc.training.pruning.run import prune
    from hmc.training.runs.processes import is_first_process

    check_run_folder(out)
    check_options(budget, latency, schedule, options)
    served = LatencySettings(**given_options(latency))
    if not source and not (data and dev):
        raise InvalidRequestError("give --data and --dev (parallel text), or --source (plain source text)")
    if dry_run and (source or latency.target_speedup or latency.target_latency_ms):
        raise InvalidRequestError(
            "--dry-run: what --source or a latency leads to is known only after translating or measuring; leave it "
            "out, or give --target-heads, --data and --dev"
        )
    kinds = parse_kinds(budget.scope or "all", "--scope")
    settings = parse_settings(options, kinds)
    if source:
        from hmc.pipelines.distillation.settings import IMPORTED
        from hmc.pipelines.distillation.teacher import as_checkpoint
        from hmc.pipelines.pruning.text import FOLDER  # with what the compiler and the engine need

        checkpoint = as_checkpoint(checkpoint, out / FOLDER / IMPORTED)
    by_latency = bool(latency.target_speedup or latency.target_latency_ms)
    targets = parse_budgets(budget.target_heads or "", kinds, partial(read_layout, checkpoint))
    neurons = parse_neuron_budgets(budget.target_ffn or "")
    if schedule.nested_steps and neurons:
        raise InvalidRequestError(
            "--nested-steps serves head budgets with one set of weights: prune with --target-ffn alone first, then the "
            "heads of the result with --nested-steps"
        )
    check_request(settings, neurons, schedule.nested_steps)
    corpora = list(data or ())
    request = PruneRequest(
        checkpoint, targets, corpora, dev or "", out, settings, neurons, schedule.nested_steps, control=schedule.control
    )
    if dry_run:
        show_plan(plan_pruning(request).describe(), as_json)
        return
    if by_latency:
        texts = (corpora, dev, source or [])
        prune_by_latency(checkpoint, out, settings, served, texts, as_json, control=schedule.control)
        return
    if source:
        from hmc.cli.common.consoles import open_console
        from hmc.cli.common.progress import translating
        from hmc.pipelines.pruning.text import translate_for_pruning
        from hmc.training.pruning.request import check_inputs

        check_inputs(checkpoint, settings, [*corpora, *([dev] if dev else [])])
        console = open_console(stderr=True)
        with translating(console) as (report, step):
            text = translate_for_pruning(
                checkpoint, source, out, targets, neurons, settings, hold_out=not dev, report=report, step=step
            )
        for line in text.losses():
            note(console, line)
        request = replace(request, train=[*corpora, text.corpus()], dev=dev or text.dev_corpus())
    written = prune(request)
    if is_first_process():
        show_checkpoints(written, as_json, compared(written))

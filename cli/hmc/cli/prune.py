"""`hmc prune`: a checkpoint in, checkpoints with fewer heads and feed-forward neurons out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmc.artifact.errors import InvalidRequestError, plain_problem
from hmc.cli.common.options import DRY_RUN, changed_options, opt
from hmc.cli.prune_options import (
    DATA,
    OUTPUT,
    BudgetOptions,
    LatencyOptions,
    NestedOptions,
    ScheduleOptions,
    TeacherOptions,
    TrainingOptions,
)

if TYPE_CHECKING:
    from hmc.artifact.model.heads import Kind
    from hmc.training.pruning.settings import PruneSettings


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
    eval_sentences: Annotated[int, opt(DATA, "Dev sentences scored before and after pruning.", metavar="N")] = 500,
    dry_run: Annotated[bool, opt(OUTPUT, DRY_RUN, "--dry-run")] = False,
    as_json: Annotated[bool, opt(OUTPUT, "Print the result as JSON.", "--json")] = False,
    *,
    budget: BudgetOptions,
    latency: LatencyOptions,
    training: TrainingOptions,
    schedule: ScheduleOptions,
    nested: NestedOptions,
    teaching: TeacherOptions,
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
    from hmc.training.pruning.control import compared
    from hmc.training.pruning.request import PruneRequest, check_request, plan_pruning
    from hmc.training.pruning.run import prune
    from hmc.training.runs.processes import is_first_process

    check_run_folder(out)
    _check_options(budget, latency, schedule, nested)
    if not source and not (data and dev):
        raise InvalidRequestError("give --data and --dev (parallel text), or --source (plain source text)")
    if dry_run and (source or latency.target_speedup or latency.target_latency_ms):
        raise InvalidRequestError(
            "--dry-run: what --source or a latency leads to is known only after translating or measuring; leave it "
            "out, or give --target-heads, --data and --dev"
        )
    kinds = parse_kinds(budget.scope, "--scope")
    if source:
        from hmc.pipelines.distillation.settings import IMPORTED
        from hmc.pipelines.distillation.teacher import as_checkpoint
        from hmc.pipelines.pruning.text import FOLDER  # with what the compiler and the engine need

        checkpoint = as_checkpoint(checkpoint, out / FOLDER / IMPORTED)
    by_latency = bool(latency.target_speedup or latency.target_latency_ms)
    targets = parse_budgets(budget.target_heads, kinds, partial(read_layout, checkpoint))
    neurons = parse_neuron_budgets(budget.target_ffn)
    if schedule.nested_steps and neurons:
        raise InvalidRequestError(
            "--nested-steps serves head budgets with one set of weights: prune with --target-ffn alone first, then the "
            "heads of the result with --nested-steps"
        )
    settings = _settings(kinds, eval_sentences, budget, schedule, training, nested, teaching)
    check_request(settings, neurons, schedule.nested_steps)
    corpora = list(data or ())
    request = PruneRequest(
        checkpoint, targets, corpora, dev or "", out, settings, neurons, schedule.nested_steps, control=schedule.control
    )
    if dry_run:
        show_plan(plan_pruning(request).describe(), as_json)
        return
    if by_latency:
        from hmc.cli.latency_pruning import prune_by_latency

        precision = latency.serve_precision or ("fp16" if latency.serve == "cuda" else "int8")
        served = latency.serve, precision, latency.serve_batch, latency.serve_beam, latency.serve_threads
        prune_by_latency(
            checkpoint, out, settings, (latency.target_speedup, latency.target_latency_ms), served,
            (corpora, dev, source or []), latency.latency_table, as_json, control=schedule.control,
        )  # fmt: skip
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


def _check_options(
    budget: BudgetOptions, latency: LatencyOptions, schedule: ScheduleOptions, nested: NestedOptions
) -> None:
    """Raises InvalidRequestError for options that the others leave without effect."""
    if latency.target_speedup or latency.target_latency_ms:
        others = [*changed_options(budget), *(["--nested-steps"] if schedule.nested_steps else [])]
        if others:
            raise InvalidRequestError(
                f"a latency decides on heads, neurons and layers together: leave {', '.join(others)} out, or "
                "--target-speedup and --target-latency-ms"
            )
    elif unused := changed_options(latency):
        raise InvalidRequestError(
            f"{unused[0]} belongs to --target-speedup or --target-latency-ms: give one, or leave it out"
        )
    if not schedule.nested_steps:
        if unused := changed_options(nested):
            raise InvalidRequestError(
                f"{unused[0]} belongs to --nested-steps: give a number of updates, or leave it out"
            )
    elif nested.nested_heads != "checkpoints":
        closing = [name for name in changed_options(schedule) if name in ("--close-steps", "--recover-steps")]
        closing += ["--settle-gates"] if budget.settle_gates else []
        if closing:
            raise InvalidRequestError(f"--nested-heads {nested.nested_heads} closes no gates: leave {closing[0]} out")


def _settings(
    kinds: Sequence[Kind],
    eval_sentences: int,
    budget: BudgetOptions,
    schedule: ScheduleOptions,
    training: TrainingOptions,
    nested: NestedOptions,
    teaching: TeacherOptions,
) -> PruneSettings:
    """Raises InvalidRequestError, which names the options, if a value is none that its setting takes."""
    from pydantic import ValidationError

    from hmc.training.pruning.settings import PruneSettings
    from hmc.training.runs.recipe import RunSection

    given = {**vars(budget), **vars(schedule), **vars(training), "scope": kinds}
    given |= {"compile": training.compile_loss, "eval_every": nested.eval_every, "eval_sentences": eval_sentences}
    sections = {
        "distill": {
            "weight": teaching.distill,
            "temperature": teaching.temperature,
            "teacher": str(teaching.teacher) if teaching.teacher else None,
            "hidden": teaching.distill_hidden,
            "attention": teaching.distill_attention,
        },
        "nested": {
            "levels": nested.nested_levels,
            "between": nested.nested_between,
            "teacher": nested.nested_teacher,
            "shrink": nested.nested_shrink,
            "heads": nested.nested_heads,
        },
        "run": {name: given[name] for name in RunSection.model_fields if given.get(name) is not None},
    }
    own = {name: given[name] for name in PruneSettings.model_fields if name in given}
    try:
        return PruneSettings.model_validate(own | sections)
    except ValidationError as error:
        problems = [f"--{_option_of(e['loc'])} {e['input']}: {plain_problem(e)}" for e in error.errors()]
        raise InvalidRequestError("; ".join(problems)) from error


def _option_of(location: Sequence[int | str]) -> str:
    """Returns the option that sets a setting, from the setting's place: `distill.weight` is `distill`."""
    section = str(location[0])
    name = str(location[-1])
    if section in ("distill", "nested") and len(location) > 1:
        own = {"weight": "distill", "temperature": "temperature", "teacher": "teacher"} if section == "distill" else {}
        name = own.get(name, f"{section}_{name}")
    return name.replace("_", "-")

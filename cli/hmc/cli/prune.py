"""`hmc prune`: a checkpoint in, checkpoints with fewer heads and feed-forward neurons out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmc.artifact.errors import InvalidRequestError, plain_problem
from hmc.cli.common.options import DRY_RUN, changed_options, opt

if TYPE_CHECKING:
    from hmc.artifact.model.heads import Kind
    from hmc.training.pruning.settings import PruneSettings

LATENCY = "What to remove: by latency"
DATA, BUDGET, SCHEDULE, TRAINING, OUTPUT = "Data", "What to remove", "How long", "Training", "Output"
NESTED, TEACHER = "One set of weights for all budgets", "Teacher"
QUARTER = "a quarter of those that CHECKPOINT was trained with, 50 to 1,500"


@dataclass(frozen=True)
class BudgetOptions:
    """What to remove."""

    target_heads: Annotated[
        str,
        opt(
            BUDGET,
            "Number of heads in --scope that stay open: one budget or several, such as 72,36; shares of all "
            "heads: 50%,25%; or a number for each kind: enc=10,dec=20,cross=24 (separate several with ';'). A kind "
            "that is not named keeps all its heads.",
        ),
    ] = ""
    target_ffn: Annotated[
        str,
        opt(
            BUDGET,
            "Number of feed-forward neurons of the whole model that stay: 1536; a share: 50%; or several budgets: "
            "50%,25%. With --target-heads: one number for all head budgets, or one for each.",
        ),
    ] = ""
    l0_lambda: Annotated[
        float | None,
        opt(
            BUDGET,
            "Instead of budgets: the λ of Voita et al. 2019, in nats per token and open head. The loss is the "
            "paper's, L_xent + λ·Σ(1-P(g=0)), with nothing added; some gates may stay undecided.",
        ),
    ] = None
    settle_gates: Annotated[
        bool,
        opt(
            BUDGET,
            "With --l0-lambda: also press every gate to decide, and fix the decisions at the end, as budgets do.",
            "--settle-gates",
        ),
    ] = False
    scope: Annotated[
        str,
        opt(
            BUDGET,
            "Kinds of heads that may close: all; or some of encoder_self, decoder_self, cross, separated by commas.",
        ),
    ] = "all"


@dataclass(frozen=True)
class LatencyOptions:
    """What to remove, by latency."""

    target_speedup: Annotated[
        str,
        opt(
            LATENCY,
            "Instead of budgets: how much faster the model shall be, such as 2x, or several: 1.5x,2x. Heads, neurons, "
            "whole attentions and whole layers close together, each weighed by what it costs.",
            metavar="FACTOR",
        ),
    ] = ""
    target_latency_ms: Annotated[
        str, opt(LATENCY, "The same as milliseconds of one request, such as 12.5, or several: 20,12.5.", metavar="MS")
    ] = ""
    serve: Annotated[
        str,
        opt(
            LATENCY,
            "What serves the model. here: models are timed on this machine's CPU. cpu or cuda: nothing is timed; the "
            "operations, bytes and products of their step programs are counted, at rough speeds of such a device.",
            metavar="here|cpu|cuda",
        ),
    ] = "here"
    serve_precision: Annotated[
        str | None,
        opt(
            LATENCY,
            "Precision that the model is served at: fp32, int8 or int4; fp16 or bf16 on CUDA.",
            show_default="int8, and fp16 with --serve cuda",
        ),
    ] = None
    serve_batch: Annotated[int, opt(LATENCY, "Sentences of a request.", metavar="N")] = 1
    serve_beam: Annotated[int, opt(LATENCY, "Beam of the search.", metavar="N")] = 4
    serve_threads: Annotated[int, opt(LATENCY, "Threads that serve it; 0 is one per physical core.", metavar="N")] = 0
    latency_table: Annotated[
        Path | None,
        opt(
            LATENCY,
            "Latency table to prune by, as an earlier run on this machine left it in DIR/latency.json. Without it "
            "the table is measured first.",
            metavar="FILE",
        ),
    ] = None


@dataclass(frozen=True)
class TrainingOptions:
    """How weights are trained meanwhile."""

    freeze: Annotated[
        str | None,
        opt(
            TRAINING,
            "Stack whose weights are not trained; the embeddings are then not trained either. matrices: only "
            "layer norms and biases are trained.",
            metavar="encoder|decoder|matrices",
        ),
    ] = None
    learning_rate: Annotated[float, opt(TRAINING, "Learning rate of the weights.")] = 3e-4
    optimizer: Annotated[
        str,
        opt(TRAINING, "adam, or muon: Muon for the matrices of the layers, Adam for all else.", metavar="adam|muon"),
    ] = "adam"
    warmup_steps: Annotated[
        int, opt(TRAINING, "First updates of the run, over which the learning rate rises linearly.")
    ] = 1
    batch_tokens: Annotated[int, opt(TRAINING, "Source and target tokens of a batch, padding included.")] = 4096
    max_length: Annotated[
        int,
        opt(
            TRAINING,
            "Longest sentence that is trained on, in tokens; longer pairs are left out, and counted.",
            metavar="TOKENS",
        ),
    ] = 128
    accumulate: Annotated[int, opt(TRAINING, "Batches in one update; their gradients are summed.")] = 1
    dropout: Annotated[float, opt(TRAINING, "Share of activations dropped while training.")] = 0.1
    bpe_dropout: Annotated[
        float | None,
        opt(TRAINING, "Probability of skipping a BPE merge in training text. Default: as in the checkpoint's recipe."),
    ] = None
    bpe_dropout_copies: Annotated[
        int | None,
        opt(TRAINING, "Segmentations that BPE-dropout draws of each pair. Default: as in the checkpoint's recipe."),
    ] = None
    seed: Annotated[int, opt(TRAINING, "Seed of gates, batches and dropout.")] = 1
    precision: Annotated[
        str | None,
        opt(
            TRAINING,
            "32-true or bf16-mixed. Default: as in the checkpoint's recipe; 32-true where the device has no "
            "products of bf16.",
        ),
    ] = None
    compile_loss: Annotated[
        bool,
        opt(
            TRAINING,
            "On CUDA: let torch.compile write the kernels of an update. The first updates are slow.",
            "--compile",
        ),
    ] = False
    device: Annotated[str, opt(TRAINING, "auto, cpu or cuda.")] = "auto"


@dataclass(frozen=True)
class ScheduleOptions:
    """How long it takes, in updates."""

    close_steps: Annotated[
        int | None, opt(SCHEDULE, "Updates for each budget in which gates close.", show_default=QUARTER)
    ] = None
    recover_steps: Annotated[
        int | None,
        opt(
            SCHEDULE,
            "Updates for each budget after the gates have closed; the heads no longer change.",
            show_default=QUARTER,
        ),
    ] = None
    control: Annotated[
        bool,
        opt(
            SCHEDULE,
            "Also train all heads for as many further updates: what the levels are to be compared with. A run that "
            "has ended may get it later.",
            "--control",
        ),
    ] = False
    nested_steps: Annotated[
        int,
        opt(
            SCHEDULE,
            "Updates of a last training of the full model, after which one set of weights serves all head "
            "budgets. 0: none.",
        ),
    ] = 0
    save_every: Annotated[int, opt(SCHEDULE, "Updates between saved states, from which a run resumes.")] = 500


@dataclass(frozen=True)
class NestedOptions:
    """How one set of weights learns all budgets."""

    eval_every: Annotated[
        str,
        opt(
            NESTED,
            "Updates of --nested-steps between dev scores of all levels, or epoch: after each pass over the text. "
            "The best checkpoints are averaged.",
            metavar="N|epoch",
        ),
    ] = "500"
    nested_levels: Annotated[
        str,
        opt(
            NESTED,
            "Levels that an update of --nested-steps trains: sandwich (the largest, the smallest and one "
            "between), one (drawn at random, a third of the time) or smallest (that one alone).",
            metavar="sandwich|one|smallest",
        ),
    ] = "sandwich"
    nested_between: Annotated[
        str,
        opt(
            NESTED,
            "The level between: one of the budgets, or any number of heads from the smallest to the largest.",
            metavar="budgets|any",
        ),
    ] = "budgets"
    nested_teacher: Annotated[
        str,
        opt(
            NESTED,
            "With --distill: levels learn from the frozen teacher, or from the largest level itself.",
            metavar="frozen|in-place",
        ),
    ] = "frozen"
    nested_shrink: Annotated[
        float,
        opt(
            NESTED,
            "First share of the updates, over which the levels shrink from all heads to their budgets.",
            metavar="SHARE",
        ),
    ] = 0.0
    nested_heads: Annotated[
        str,
        opt(
            NESTED,
            "What ranks the heads: the checkpoints of each budget; or, without closing any gates first, the log α "
            "of CHECKPOINT (gates), its importance, or both.",
            metavar="checkpoints|gates|importance|both",
        ),
    ] = "checkpoints"


@dataclass(frozen=True)
class TeacherOptions:
    """What is learned from a teacher."""

    distill: Annotated[
        float,
        opt(
            TEACHER,
            "Share of the loss that is the difference from a teacher's distributions, from 0 (off) to 1; the rest is "
            "the cross entropy. An example is 0.9.",
            metavar="WEIGHT",
        ),
    ] = 0.0
    temperature: Annotated[float, opt(TEACHER, "With --distill: divides the logits of teacher and student.")] = 1.0
    teacher: Annotated[
        Path | None,
        opt(
            TEACHER,
            "With --distill: the teacher, with the same vocabulary. Default: CHECKPOINT itself.",
            metavar="CKPT",
        ),
    ] = None
    distill_hidden: Annotated[
        float, opt(TEACHER, "Weight of the mean squared difference from the teacher's layer outputs.", metavar="WEIGHT")
    ] = 0.0
    distill_attention: Annotated[
        float,
        opt(TEACHER, "Weight of the mean squared difference from the teacher's attention outputs.", metavar="WEIGHT"),
    ] = 0.0


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
    from functools import partial

    from hmc.artifact.checkpoint.checkpoint import read_layout
    from hmc.artifact.model.budgets import parse_budgets, parse_kinds
    from hmc.artifact.model.ffn import parse_neuron_budgets
    from hmc.cli.common.consoles import note, show_checkpoints, show_plan
    from hmc.cli.common.outputs import check_run_folder
    from hmc.training.pruning.control import compared
    from hmc.training.pruning.request import check_request
    from hmc.training.pruning.run import plan_pruning, prune
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
    if dry_run:
        plan = plan_pruning(
            checkpoint, targets, data or [], dev or "", out, settings, neurons, schedule.nested_steps,
            control=schedule.control,
        )  # fmt: skip
        show_plan(plan, as_json)
        return
    corpora, dev_corpus = list(data or ()), dev or ""
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
        corpora, dev_corpus = [*corpora, text.corpus()], dev or text.dev_corpus()
    written = prune(
        checkpoint, targets, corpora, dev_corpus, out, settings, neurons, schedule.nested_steps,
        control=schedule.control,
    )  # fmt: skip
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
    section, name = str(location[0]), str(location[-1])
    if section in ("distill", "nested") and len(location) > 1:
        own = {"weight": "distill", "temperature": "temperature", "teacher": "teacher"} if section == "distill" else {}
        name = own.get(name, f"{section}_{name}")
    return name.replace("_", "-")

"""`hmc prune`: a checkpoint in, checkpoints with fewer heads and feed-forward neurons out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hmc.cli.common.distill_options import (
    Distill,
    Hidden,
    OutputsOfAttention,
    TeacherPath,
    Temperature,
    option_of,
)
from hmc.cli.common.options import DRY_RUN

LATENCY = "What to remove: by latency on this machine"
DATA, BUDGET, SCHEDULE, TRAINING, OUTPUT = "Data", "What to remove", "How long", "Training", "Output"
NESTED = "One set of weights for all budgets"


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
        typer.Option(
            "--out",
            "-o",
            help="Run folder, with one checkpoint for each budget. The same command again resumes an interrupted run.",
            metavar="DIR",
            rich_help_panel=OUTPUT,
        ),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Training corpus: 'SRC TGT', 'FILE.tsv', 'FILE.jsonl', 'FILE.parquet' or 'hub:NAME'. Repeatable.",
            metavar="CORPUS",
            rich_help_panel=DATA,
        ),
    ] = None,
    dev: Annotated[
        str | None, typer.Option(help="Dev corpus, written the same way.", metavar="CORPUS", rich_help_panel=DATA)
    ] = None,
    source: Annotated[
        list[Path] | None,
        typer.Option(
            help="Plain source text, or .gz, one sentence a line: the model translates it first, and is pruned with "
            "its own translations. Some are held out as dev text if --dev is not given. Repeatable; --data adds to it.",
            metavar="FILE",
            rich_help_panel=DATA,
        ),
    ] = None,
    target_heads: Annotated[
        str,
        typer.Option(
            help="Number of heads in --scope that stay open: one budget or several, such as 72,36; shares of all "
            "heads: 50%,25%; or a number for each kind: enc=10,dec=20,cross=24 (separate several with ';'). A kind "
            "that is not named keeps all its heads.",
            rich_help_panel=BUDGET,
        ),
    ] = "",
    target_ffn: Annotated[
        str,
        typer.Option(
            help="Number of feed-forward neurons of the whole model that stay: 1536; a share: 50%; or several budgets: "
            "50%,25%. With --target-heads: one number for all head budgets, or one for each.",
            rich_help_panel=BUDGET,
        ),
    ] = "",
    target_speedup: Annotated[
        str,
        typer.Option(
            help="Instead of budgets: how much faster the model shall be on this machine, such as 2x, or several: "
            "1.5x,2x. Heads, neurons and whole layers close together, each weighed by what it costs.",
            metavar="FACTOR",
            rich_help_panel=LATENCY,
        ),
    ] = "",
    target_latency_ms: Annotated[
        str,
        typer.Option(
            help="The same as milliseconds of one request, such as 12.5, or several: 20,12.5.",
            metavar="MS",
            rich_help_panel=LATENCY,
        ),
    ] = "",
    serve_precision: Annotated[
        str,
        typer.Option(help="Precision that the model is served at: fp32, int8 or int4.", rich_help_panel=LATENCY),
    ] = "int8",
    serve_batch: Annotated[int, typer.Option(help="Sentences of a request.", metavar="N", rich_help_panel=LATENCY)] = 1,
    serve_beam: Annotated[int, typer.Option(help="Beam of the search.", metavar="N", rich_help_panel=LATENCY)] = 4,
    serve_threads: Annotated[
        int,
        typer.Option(help="Threads that serve it; 0 is one per physical core.", metavar="N", rich_help_panel=LATENCY),
    ] = 0,
    latency_table: Annotated[
        Path | None,
        typer.Option(
            help="Latency table to prune by, as an earlier run on this machine left it in DIR/latency.json. Without it "
            "the table is measured first.",
            metavar="FILE",
            rich_help_panel=LATENCY,
        ),
    ] = None,
    l0_lambda: Annotated[
        float | None,
        typer.Option(
            help="Instead of budgets: the λ of Voita et al. 2019, in nats per token and open head. The loss is the "
            "paper's, L_xent + λ·Σ(1-P(g=0)), with nothing added; some gates may stay undecided.",
            rich_help_panel=BUDGET,
        ),
    ] = None,
    settle_gates: Annotated[
        bool,
        typer.Option(
            "--settle-gates",
            help="With --l0-lambda: also press every gate to decide, and fix the decisions at the end, as budgets do.",
            rich_help_panel=BUDGET,
        ),
    ] = False,
    scope: Annotated[
        str,
        typer.Option(
            help="Kinds of heads that may close: all; or some of encoder_self, decoder_self, cross, separated by "
            "commas.",
            rich_help_panel=BUDGET,
        ),
    ] = "all",
    freeze: Annotated[
        str | None,
        typer.Option(
            help="Stack whose weights are not trained; the embeddings are then not trained either. matrices: only "
            "layer norms and biases are trained.",
            metavar="encoder|decoder|matrices",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    close_steps: Annotated[
        int, typer.Option(help="Updates for each budget in which gates close.", rich_help_panel=SCHEDULE)
    ] = 1500,
    recover_steps: Annotated[
        int,
        typer.Option(
            help="Updates for each budget after the gates have closed; the heads no longer change.",
            rich_help_panel=SCHEDULE,
        ),
    ] = 1500,
    nested_steps: Annotated[
        int,
        typer.Option(
            help="Updates of a last training of the full model, after which one set of weights serves all head "
            "budgets. 0: none.",
            rich_help_panel=SCHEDULE,
        ),
    ] = 0,
    save_every: Annotated[
        int, typer.Option(help="Updates between saved states, from which a run resumes.", rich_help_panel=SCHEDULE)
    ] = 500,
    eval_every: Annotated[
        str,
        typer.Option(
            help="Updates of --nested-steps between dev scores of all levels, or epoch: after each pass over the text. "
            "The best checkpoints are averaged.",
            metavar="N|epoch",
            rich_help_panel=NESTED,
        ),
    ] = "500",
    learning_rate: Annotated[
        float, typer.Option(help="Learning rate of the weights.", rich_help_panel=TRAINING)
    ] = 3e-4,
    optimizer: Annotated[
        str,
        typer.Option(
            help="adam, or muon: Muon for the matrices of the layers, Adam for all else.",
            metavar="adam|muon",
            rich_help_panel=TRAINING,
        ),
    ] = "adam",
    warmup_steps: Annotated[
        int,
        typer.Option(
            help="First updates of the run, over which the learning rate rises linearly.", rich_help_panel=TRAINING
        ),
    ] = 1,
    batch_tokens: Annotated[
        int, typer.Option(help="Source and target tokens of a batch, padding included.", rich_help_panel=TRAINING)
    ] = 4096,
    accumulate: Annotated[
        int, typer.Option(help="Batches in one update; their gradients are summed.", rich_help_panel=TRAINING)
    ] = 1,
    dropout: Annotated[
        float, typer.Option(help="Share of activations dropped while training.", rich_help_panel=TRAINING)
    ] = 0.1,
    bpe_dropout: Annotated[
        float | None,
        typer.Option(
            help="Probability of skipping a BPE merge in training text. Default: as in the checkpoint's recipe.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    bpe_dropout_copies: Annotated[
        int | None,
        typer.Option(
            help="Segmentations that BPE-dropout draws of each pair. Default: as in the checkpoint's recipe.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    nested_levels: Annotated[
        str,
        typer.Option(
            help="Levels that an update of --nested-steps trains: sandwich (the largest, the smallest and one "
            "between), one (drawn at random, a third of the time) or smallest (that one alone).",
            metavar="sandwich|one|smallest",
            rich_help_panel=NESTED,
        ),
    ] = "sandwich",
    nested_between: Annotated[
        str,
        typer.Option(
            help="The level between: one of the budgets, or any number of heads from the smallest to the largest.",
            metavar="budgets|any",
            rich_help_panel=NESTED,
        ),
    ] = "budgets",
    nested_teacher: Annotated[
        str,
        typer.Option(
            help="With --distill: levels learn from the frozen teacher, or from the largest level itself.",
            metavar="frozen|in-place",
            rich_help_panel=NESTED,
        ),
    ] = "frozen",
    nested_shrink: Annotated[
        float,
        typer.Option(
            help="First share of the updates, over which the levels shrink from all heads to their budgets.",
            metavar="SHARE",
            rich_help_panel=NESTED,
        ),
    ] = 0.0,
    nested_heads: Annotated[
        str,
        typer.Option(
            help="What ranks the heads: the checkpoints of each budget; or, without closing any gates first, the log α "
            "of CHECKPOINT (gates), its importance, or both.",
            metavar="checkpoints|gates|importance|both",
            rich_help_panel=NESTED,
        ),
    ] = "checkpoints",
    distill: Distill = 0.0,
    temperature: Temperature = 1.0,
    teacher: TeacherPath = None,
    distill_hidden: Hidden = 0.0,
    distill_attention: OutputsOfAttention = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of gates, batches and dropout.", rich_help_panel=TRAINING)] = 1,
    precision: Annotated[str, typer.Option(help="32-true or bf16-mixed.", rich_help_panel=TRAINING)] = "32-true",
    compile_loss: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="On CUDA: let torch.compile write the kernels of an update. The first updates are slow.",
            rich_help_panel=TRAINING,
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.", rich_help_panel=TRAINING)] = "auto",
    eval_sentences: Annotated[
        int,
        typer.Option(help="Dev sentences scored before and after pruning.", metavar="N", rich_help_panel=DATA),
    ] = 500,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN, rich_help_panel=OUTPUT)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Find the heads and neurons that a model needs least, and remove them until exactly the given number is left.

    Each budget gives one checkpoint. With --target-speedup or --target-latency-ms, layers are removed too, until the
    model's measured latency keeps the target. The method is hard-concrete gates with an L0 penalty (Voita et al. 2019).
    """
    from functools import partial

    from pydantic import ValidationError

    from hmc.artifact.checkpoint.checkpoint import read_layout
    from hmc.artifact.errors import InvalidRequestError
    from hmc.artifact.model.budgets import parse_budgets, parse_kinds
    from hmc.artifact.model.ffn import parse_neuron_budgets
    from hmc.cli.common.consoles import show_checkpoints, show_plan
    from hmc.cli.common.outputs import check_run_folder
    from hmc.training.pruning.request import check_request
    from hmc.training.pruning.run import plan_pruning, prune
    from hmc.training.pruning.settings import PruneSettings
    from hmc.training.runs.processes import is_first_process

    check_run_folder(out)
    if not source and not (data and dev):
        raise InvalidRequestError("give --data and --dev (parallel text), or --source (plain source text)")
    if dry_run and (source or target_speedup or target_latency_ms):
        raise InvalidRequestError(
            "--dry-run: what --source or a latency leads to is known only after translating or measuring; leave it "
            "out, or give --target-heads, --data and --dev"
        )
    kinds = parse_kinds(scope, "--scope")
    if source:
        from hmc.pipelines.pruning.text import imported  # with what the compiler and the engine need

        checkpoint = imported(checkpoint, out)
    by_latency = bool(target_speedup or target_latency_ms)
    if by_latency and (target_heads or target_ffn or nested_steps):
        raise InvalidRequestError(
            "a latency decides on heads, neurons and layers together: give it without --target-heads, --target-ffn and "
            "--nested-steps"
        )
    if latency_table and not by_latency:
        raise InvalidRequestError("--latency-table belongs to --target-speedup or --target-latency-ms")
    targets = parse_budgets(target_heads, kinds, partial(read_layout, checkpoint))
    neurons = parse_neuron_budgets(target_ffn)
    if nested_steps and neurons:
        raise InvalidRequestError(
            "--nested-steps serves head budgets with one set of weights: prune with --target-ffn alone first, then the "
            "heads of the result with --nested-steps"
        )
    try:
        settings = PruneSettings.model_validate(
            {
                "close_steps": close_steps,
                "recover_steps": recover_steps,
                "learning_rate": learning_rate,
                "optimizer": optimizer,
                "warmup_steps": warmup_steps,
                "l0_lambda": l0_lambda,
                "settle_gates": settle_gates,
                "scope": kinds,
                "freeze": freeze,
                "batch_tokens": batch_tokens,
                "accumulate": accumulate,
                "dropout": dropout,
                "bpe_dropout": bpe_dropout,
                "bpe_dropout_copies": bpe_dropout_copies,
                "seed": seed,
                "distill": {
                    "weight": distill,
                    "temperature": temperature,
                    "teacher": str(teacher) if teacher else None,
                    "hidden": distill_hidden,
                    "attention": distill_attention,
                },
                "nested": {
                    "levels": nested_levels,
                    "between": nested_between,
                    "teacher": nested_teacher,
                    "shrink": nested_shrink,
                    "heads": nested_heads,
                },
                "run": {
                    "precision": precision,
                    "device": device,
                    "compile": compile_loss,
                    "save_every": save_every,
                    "eval_every": eval_every,
                    "eval_sentences": eval_sentences,
                },
            }
        )
    except ValidationError as error:
        raise InvalidRequestError("; ".join(f"--{option_of(e['loc'])}: {e['msg']}" for e in error.errors())) from error
    check_request(settings, neurons, nested_steps)
    if dry_run:
        plan = plan_pruning(checkpoint, targets, data or [], dev or "", out, settings, neurons, nested_steps)
        show_plan(plan, as_json)
        return
    corpora, dev_corpus = list(data or ()), dev or ""
    if by_latency:
        from hmc.cli.latency_pruning import prune_by_latency

        prune_by_latency(
            checkpoint, out, settings, (target_speedup, target_latency_ms),
            (serve_precision, serve_batch, serve_beam, serve_threads), (corpora, dev, source or []),
            latency_table, as_json,
        )  # fmt: skip
        return
    if source:
        from hmc.cli.common.consoles import open_console
        from hmc.cli.common.progress import translating
        from hmc.pipelines.pruning.text import translate_for_pruning
        from hmc.training.pruning.request import check_text

        check_text(checkpoint, [*corpora, *([dev] if dev else [])])
        with translating(open_console(stderr=True)) as (report, step):
            text = translate_for_pruning(
                checkpoint, source, out, targets, neurons, settings, hold_out=not dev, report=report, step=step
            )
        corpora, dev_corpus = [*corpora, text.corpus()], dev or text.dev_corpus()
    written = prune(checkpoint, targets, corpora, dev_corpus, out, settings, neurons, nested_steps)
    if is_first_process():
        show_checkpoints(written, as_json)

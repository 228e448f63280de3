"""`hmc prune`: close heads and feed-forward neurons of a converged checkpoint down to exact budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    checkpoint: Annotated[Path, typer.Argument(help="A converged checkpoint, as `hmc train` writes it.")],
    data: Annotated[list[str], typer.Option(help="Training corpus: 'SRC TGT', 'FILE.tsv' or 'hub:NAME'. Repeatable.")],
    dev: Annotated[str, typer.Option(help="Dev corpus, written the same way.")],
    out: Annotated[Path, typer.Option(help="Run folder; one checkpoint a budget. The same command again resumes.")],
    target_heads: Annotated[
        str,
        typer.Option(
            help="Exactly so many heads in scope stay open: budgets 72 or 72,36, shares 50%,25%, or one a kind, "
            "enc=10,dec=20,cross=24 (several with ';'). A kind left out keeps its heads.",
        ),
    ] = "",
    target_ffn: Annotated[
        str,
        typer.Option(
            help="Exactly so many feed-forward neurons of the whole model stay: 1536, a share 50%, or several budgets, "
            "50%,25%. With --target-heads, one for all of its budgets or as many.",
        ),
    ] = "",
    l0_lambda: Annotated[
        float | None, typer.Option(help="Instead of budgets: the paper's λ, in nats per token and open head.")
    ] = None,
    scope: Annotated[
        str, typer.Option(help="Kinds whose heads may close: all, or encoder_self, decoder_self, cross with commas.")
    ] = "all",
    freeze: Annotated[
        str | None,
        typer.Option(help="encoder or decoder: its weights, and the embeddings, stay as they are.", metavar="STACK"),
    ] = None,
    close_steps: Annotated[int, typer.Option(help="Updates per budget while gates close.")] = 1500,
    recover_steps: Annotated[int, typer.Option(help="Updates per budget with the layout fixed.")] = 1500,
    nested_steps: Annotated[
        int,
        typer.Option(help="Then fine-tune the full model this long so that one set of weights serves every budget."),
    ] = 0,
    learning_rate: Annotated[float, typer.Option(help="Of the weights.")] = 3e-4,
    batch_tokens: Annotated[int, typer.Option(help="Padded source + target tokens in a batch.")] = 4096,
    dropout: Annotated[float, typer.Option(help="Share of activations dropped while training.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Of gates, batches and dropout.")] = 1,
    precision: Annotated[str, typer.Option(help="32-true or bf16-mixed.")] = "32-true",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    eval_sentences: Annotated[int, typer.Option(help="Dev sentences scored before and after.")] = 500,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Learn which heads and neurons to close (hard-concrete gates), end at exact budgets, write a checkpoint each."""
    from functools import partial

    from pydantic import ValidationError

    from hmc.artifact.budgets import parse_budgets, parse_kinds
    from hmc.artifact.errors import InvalidRequestError
    from hmc.artifact.ffn import parse_neuron_budgets
    from hmc.artifact.layout_files import read_layout
    from hmc.cli.outputs import check_run_folder
    from hmc.cli.train import report
    from hmc.training.nested import nested_finetune
    from hmc.training.processes import is_first_process
    from hmc.training.prune_settings import PruneSettings
    from hmc.training.pruner import PruningRun

    check_run_folder(out)
    kinds = parse_kinds(scope)
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
                "l0_lambda": l0_lambda,
                "scope": kinds,
                "freeze": freeze,
                "batch_tokens": batch_tokens,
                "dropout": dropout,
                "seed": seed,
                "run": {"precision": precision, "device": device, "eval_sentences": eval_sentences},
            }
        )
    except ValidationError as error:
        raise InvalidRequestError(
            "; ".join(f"--{e['loc'][-1]}: {e['msg']}".replace("_", "-") for e in error.errors())
        ) from error
    written = PruningRun(checkpoint, targets, data, dev, out, settings, neurons, nested_steps).run()
    if nested_steps:
        written.append(nested_finetune(checkpoint, written, data, dev, out, settings, nested_steps))
    if is_first_process():
        report(written, as_json)

"""`hmc up`: from a downloaded model to a server, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmc.cli.common.options import EvalText, opt

if TYPE_CHECKING:
    from hmc.pipelines.up import StepDone

MODEL = "Model"
PRUNING = "Pruning"
SERVER = "Server"
OUTPUT = "Output"


def command(
    model: Annotated[
        str,
        typer.Argument(
            help="A model as it was downloaded: a directory of Transformers (MarianMT, M2M100, NLLB) or CTranslate2; a "
            "folder or .zip of Marian's own files; a name on the Hugging Face hub (OWNER/MODEL); a checkpoint of HMC.",
            metavar="MODEL",
        ),
    ],
    out: Annotated[
        Path | None,
        opt(
            OUTPUT,
            "Folder that keeps the result of every step; the same command goes on from there. Default: "
            "MODEL-hmc in the working directory.",
            "--out",
            "-o",
            metavar="DIR",
        ),
    ] = None,
    source: Annotated[
        list[Path] | None,
        opt(
            MODEL,
            "Plain text in the source language, one sentence a line. Pruning uses all files; int8 is calibrated on "
            "the first one. Repeatable.",
            metavar="FILE",
        ),
    ] = None,
    precision: Annotated[
        str | None, opt(MODEL, "Precisions of the levels, such as fp32,int8. Default: int8 with --source, else fp32.")
    ] = None,
    source_language: Annotated[str | None, opt(MODEL, "Source language, if the model does not name it.")] = None,
    target_language: Annotated[str | None, opt(MODEL, "Target language, if the model does not name it.")] = None,
    revision: Annotated[
        str | None, opt(MODEL, "Commit, tag or branch of a model on the hub. Default: its newest commit.")
    ] = None,
    target_heads: Annotated[
        str,
        opt(
            PRUNING,
            "Also levels with fewer heads, such as 50%,25% or 72,36: the model is pruned with its own "
            "translations of --source, which takes hours on a CPU.",
        ),
    ] = "",
    prune_steps: Annotated[
        int | None,
        opt(
            PRUNING,
            "Updates for closing heads, and as many for recovery. Default: as `hmc prune`.",
            needs="target_heads",
            min=10,
        ),
    ] = None,
    evaluate: EvalText = None,
    host: Annotated[str | None, opt(SERVER, "Address to listen on. Default: 127.0.0.1.", needs="serve")] = None,
    port: Annotated[
        int | None, opt(SERVER, "Port to listen on; 0 takes any free one. Default: 50051.", needs="serve")
    ] = None,
    http_port: Annotated[
        int | None,
        opt(
            SERVER,
            "Port for HTTP: the playground, JSON, LibreTranslate's API, metrics. Default: no HTTP.",
            needs="serve",
        ),
    ] = None,
    serve: Annotated[bool, opt(SERVER, "Serve the bundle at the end.", "--serve/--no-serve")] = True,
    as_json: Annotated[bool, opt(OUTPUT, "Print the steps and the address as lines of JSON.", "--json")] = False,
) -> None:
    """Import, prune, compile and serve a model in one command. Steps that an earlier run finished are not repeated.

    Levels are measured with --eval, or else on text of --source. Without --eval, BLEU compares them with translations
    of the unpruned model, or of its fp32 level, and not with translations by people.

    `hmc import`, `hmc prune`, `hmc compile` and `hmc serve` do the same one by one, with all their options. The server
    reads variables such as HMC_TOKEN and the file that HMC_CONFIG names, as `hmc serve` does.
    """
    import json
    import os
    from functools import partial

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from hmc.artifact.bundle.manifest import read_manifest
    from hmc.artifact.bundle.order import why_default
    from hmc.artifact.stopping import stoppable
    from hmc.cli.common.consoles import note, open_console
    from hmc.cli.common.options import parse_precisions
    from hmc.cli.common.outputs import check_run_folder
    from hmc.cli.common.progress import translating
    from hmc.cli.running import serve_models
    from hmc.pipelines.importing import located
    from hmc.pipelines.up import UpSettings, bring_up, default_folder
    from hmc.serving.server.configuration import load
    from hmc.serving.server.observing.logs import set_up

    out = out or default_folder(model)
    check_run_folder(out)
    addresses = {"host": host, "port": port, "http_port": http_port}
    given = {name: value for name, value in addresses.items() if value is not None}
    server = load(given, os.environ).settings if serve else None
    console = open_console(stderr=True)
    settings = UpSettings(
        model=located(model, revision, partial(note, console)).path,
        out=out,
        sources=tuple(source or ()),
        target_heads=target_heads,
        precisions=tuple(parse_precisions(precision)) if precision else (),
        languages=(source_language, target_language),
        prune_steps=prune_steps,
        test_set=evaluate,
    )

    if not settings.precisions and not settings.sources:
        note(console, "fp32: int8 is faster on a CPU, and needs text to calibrate with; give --source FILE for it")
    if settings.test_set is None and not settings.sources:
        note(
            console,
            "No quality and no times will be recorded, because there is no text to measure on: give --eval SRC REF or "
            "--source FILE for it",
        )

    def done(step: StepDone) -> None:
        if as_json:
            typer.echo(json.dumps({"step": step.name, "folder": str(step.folder), "kept": step.kept}))
        else:
            note(console, f"{step.name}: {step.folder}{' (from an earlier run)' if step.kept else ''}")

    kept = f"the steps in {out} that are finished are kept; the same command goes on after them"
    with stoppable(lambda: kept):
        bundle = bring_up(settings, done, partial(note, console), partial(translating, console))
    manifest = read_manifest(bundle)
    if len(manifest.levels) > 1:
        note(console, why_default(manifest))
    if server is not None:
        set_up(server.log_format, texts=server.log_texts)
        serve_models([str(bundle)], server, json_output=as_json)

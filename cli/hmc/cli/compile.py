"""`hmc compile`: checkpoints in, a bundle of slim ONNX levels out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from hmc.artifact.bundle import Manifest, Precision
    from hmc.benchmark.text import TestSet
    from hmc.cli.compile_search import BudgetPlan
    from hmc.compiler.bundle_builder import LevelRequest
    from hmc.compiler.shortlist_text import ShortlistText


def command(
    checkpoints: Annotated[
        list[str], typer.Argument(help="One CHECKPOINT for all budgets, or NAME=CHECKPOINT pairs, one level each.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Bundle directory to write.")],
    target_heads: Annotated[
        str,
        typer.Option(
            help="Heads that stay, a level each: 144,72,36, shares 50%,25%, or by kind, enc=10,dec=20,cross=24 "
            "(several with ';'). A kind left out keeps its heads."
        ),
    ] = "",
    layout: Annotated[
        list[Path] | None,
        typer.Option(
            help="A level of just these heads: a JSON file with a head layout, or another checkpoint, whose heads they "
            "are. The level is called as the file. May be given again."
        ),
    ] = None,
    rank_by: Annotated[
        str | None,
        typer.Option(
            help="Which heads stay: those of the highest gates or importance; default gates, if there are any.",
            metavar="gates|importance",
        ),
    ] = None,
    max_bleu_drop: Annotated[
        float | None,
        typer.Option(help="Instead of budgets: the fewest heads that lose at most this on --eval.", metavar="BLEU"),
    ] = None,
    max_latency_ms: Annotated[
        float | None,
        typer.Option(help="Instead of budgets: the most heads that translate a sentence in this time.", metavar="MS"),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(help="How sure --max-bleu-drop is kept, default 0.95; 0: as far as measured.", metavar="SHARE"),
    ] = None,
    precision: Annotated[
        str, typer.Option(help="fp32, int8, int4 (for CPU), fp16, bf16 (for CUDA); several with commas.")
    ] = "fp32",
    calibrate: Annotated[
        Path | None, typer.Option(help="Source sentences for the scales of int8 and int4; a few hundred lines.")
    ] = None,
    shortlist: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            help="SRC TGT, parallel text: int8 and int4 levels get a twin NAME-shortlist, choosing among likely tokens."
        ),
    ] = None,
    shortlist_frequent: Annotated[
        int | None, typer.Option(help="The most frequent target tokens, which are always candidates.", metavar="N")
    ] = None,
    shortlist_best: Annotated[
        int | None, typer.Option(help="Candidates that are translations of each source token.", metavar="N")
    ] = None,
    evaluate: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--eval", help="SRC REF: score every level and write it into the manifest."),
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Beam size of --eval, default 4.")] = None,
    test_set: Annotated[
        str | None, typer.Option(help="Name of the --eval test set; default: the file's, less its suffixes.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON, and what was tried.")] = False,
) -> None:
    """Remove closed heads from the weights, write encoder and decoder graphs per level, check them, and bundle them."""
    import json

    from rich.console import Console

    from hmc.artifact.bundle_files import replace_bundle
    from hmc.artifact.errors import InvalidRequestError
    from hmc.benchmark.text import TestSet, read_sentences
    from hmc.cli.compile_arguments import parse_limits, parse_precisions, parse_requests, read_shortlist
    from hmc.cli.compile_search import BudgetPlan
    from hmc.cli.termination import exit_on_sigterm
    from hmc.compiler.bundle_builder import LISTED
    from hmc.serving.options import MAX_BEAM

    limits = parse_limits(max_bleu_drop, max_latency_ms, confidence)
    precisions = parse_precisions(precision)
    requests = parse_requests(checkpoints, target_heads, layout or [], rank_by, searching=limits is not None)
    if limits and not evaluate:
        raise InvalidRequestError("the levels of a search are scored and timed on a test set: give --eval SRC REF")
    if not evaluate and (beam is not None or test_set is not None):
        raise InvalidRequestError("--beam and --test-set are about --eval: give --eval SRC REF, or leave them out")
    size = 4 if beam is None else beam
    if not 1 <= size <= MAX_BEAM:
        raise InvalidRequestError(f"--beam {size}: choose 1 to {MAX_BEAM}")
    if shortlist and not LISTED.intersection(precisions):
        raise InvalidRequestError("--shortlist is for int8 and int4: give --precision int8, int4 or both among others")
    sentences = [line for line in read_sentences(calibrate) if line.strip()] if calibrate else []
    pairs = TestSet.read(*evaluate, name=test_set) if evaluate else None
    if limits and pairs:
        limits.check_test_set(len(pairs.texts))
    listed, left_out = read_shortlist(shortlist, shortlist_frequent, shortlist_best, pairs)
    console, people = Console(stderr=True), Console(stderr=as_json)
    if left_out:
        console.print(f"--shortlist: {left_out} of its pairs are in --eval and are not learnt from", style="yellow")
    if pairs and not limits and (unscored := _cannot_score(precisions)):
        console.print(f"--eval: levels in {unscored} run on CUDA, and there is none here: not scored", style="yellow")
    files = (calibrate, *(shortlist or ()), *(evaluate or ()), *(layout or ()))
    inputs = [*(request.checkpoint for request in requests), *(file for file in files if file)]
    searched: dict[str, Any] = {}
    with exit_on_sigterm():
        if limits and pairs:
            plan = BudgetPlan(requests[0], out, precisions, sentences, pairs, size, limits, listed, inputs)
            manifest, searched = _search(plan, console, people)
        else:
            with replace_bundle(out, inputs) as folder:
                manifest = _compile(requests, folder, precisions, sentences, listed, console)
                if pairs:
                    manifest = _score(folder, pairs, size, console)
    if as_json:
        typer.echo(json.dumps(manifest.model_dump(mode="json") | searched, indent=1))
        return
    _summary(manifest, out)


def _cannot_score(precisions: list[Precision]) -> str:
    """The precisions whose levels do not run here. Raises DeviceUnavailableError if that is all of them."""
    from hmc.artifact.bundle import ON_CUDA
    from hmc.artifact.errors import DeviceUnavailableError
    from hmc.serving.sessions import cuda_available

    on_cuda = [precision for precision in precisions if precision in ON_CUDA]
    if not on_cuda or cuda_available():
        return ""
    if len(on_cuda) == len(precisions):
        raise DeviceUnavailableError(
            f"--eval: levels in {', '.join(on_cuda)} run on CUDA, and there is none here to score them on; leave "
            "--eval out, or compile where there is"
        )
    return ", ".join(on_cuda)


def _compile(
    requests: list[LevelRequest],
    out: Path,
    precisions: list[Precision],
    sentences: list[str],
    shortlist: ShortlistText | None,
    console: Console,
) -> Manifest:
    from hmc.cli.compile_progress import level_steps
    from hmc.compiler.bundle_writer import compile_bundle, progress_steps

    steps = progress_steps(len(requests), precisions, shortlist=shortlist is not None)
    with level_steps(console, steps) as progress:
        return compile_bundle(
            requests, out, precisions=precisions, calibration=sentences, shortlist=shortlist, progress=progress
        )


def _score(out: Path, pairs: TestSet, beam: int, console: Console) -> Manifest:
    from hmc.artifact.bundle import read_manifest
    from hmc.benchmark.quality import measure_quality, record_quality
    from hmc.cli.compile_progress import level_steps

    warnings: list[str] = []
    with level_steps(console, len(read_manifest(out).levels)) as progress:
        record_quality(out, measure_quality(out, pairs, beam=beam, progress=progress, warn=warnings.append))
    for warning in warnings:
        console.print(f"--eval: {warning}", style="yellow", markup=False, soft_wrap=True)
    return read_manifest(out)


def _search(plan: BudgetPlan, console: Console, people: Console) -> tuple[Manifest, dict[str, Any]]:
    """The tables are shown, and what they hold is returned, also as the JSON's field `search`."""
    from hmc.cli.compile_progress import level_steps
    from hmc.cli.compile_search import BudgetRun

    if not people.is_terminal:
        people.width = max(people.width, 200)  # a file or a pipe has room for every column
    ran = BudgetRun(plan)
    try:
        with level_steps(console, None) as progress:
            manifest = ran.run(progress)
    finally:
        ran.show(people)
    return manifest, {"search": ran.to_dict()}


def _summary(manifest: Manifest, out: Path) -> None:
    typer.echo(f"{out}: version {manifest.version}, {manifest.source_language} to {manifest.target_language}")
    width = max(12, *(len(level.name) for level in manifest.levels))
    for level in manifest.levels:
        quality = f"  BLEU {level.quality.bleu:.2f} ({level.quality.bleu_delta:+.2f})" if level.quality else ""
        size = f"{level.parameters:>12,} parameters  {level.bytes / 2**20:7.1f} MiB"
        default = "  default" if level.name == manifest.default_level else ""
        kept = f"  in fp32: {', '.join(level.fp32_layers)}" if level.fp32_layers else ""
        typer.echo(f"  {level.name:{width}} {level.heads:4} heads  {level.precision}  {size}{quality}{default}{kept}")

"""`hmc compile`: checkpoints in, a bundle of slim ONNX levels out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmc.artifact.precisions import names_for
from hmc.cli.common.options import EvalText, opt

if TYPE_CHECKING:
    from rich.console import Console

    from hmc.artifact.bundle.manifest import Manifest
    from hmc.benchmark.budget.compile import CompilePlan
    from hmc.benchmark.budget.find import BudgetSearch

HEADS = "Heads: which levels"
SEARCH = "Search: let the compiler find the number of heads"
PRECISION = "Precision"
SHORTLISTS = "Vocabulary shortlists"
SCORING = "Scoring"
OUTPUT = "Output"


def command(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            help="One CHECKPOINT for all levels, or several NAME=CHECKPOINT, one for each level. "
            "NAME=CHECKPOINT@HEADS makes a level with this number of its heads.",
            metavar="CHECKPOINT...",
        ),
    ],
    out: Annotated[Path, opt(OUTPUT, "Bundle directory to write.", "--out", "-o", metavar="DIR")],
    target_heads: Annotated[
        str,
        opt(
            HEADS,
            "Numbers of heads that stay, one level each: 144,72,36; shares of all heads: 50%,25%; or a number for "
            "each kind: enc=10,dec=20,cross=24 (separate several with ';'). A kind that is not named keeps all "
            "its heads. Without this option, one level with all heads.",
        ),
    ] = "",
    layout: Annotated[
        list[Path] | None,
        opt(
            HEADS,
            "One level with exactly the heads of this JSON file or of this other checkpoint. The level gets the "
            "file's name. Repeatable.",
            metavar="PATH",
        ),
    ] = None,
    rank_by: Annotated[
        str | None,
        opt(
            HEADS,
            "The score that decides which heads stay, highest first: gates (learned by `hmc prune`), or "
            "importance, ablation, relevance or confidence (written by `hmc analyze … --save`). Default: gates if the "
            "checkpoint has them, else importance.",
            metavar="NAME",
            needs="target_heads max_bleu_drop max_latency_ms",
        ),
    ] = None,
    max_bleu_drop: Annotated[
        float | None,
        opt(
            SEARCH,
            "Find the fewest heads that lose at most this much BLEU on --eval, as measured.",
            metavar="BLEU",
            needs="evaluate",
            without="target_heads layout",
        ),
    ] = None,
    max_latency_ms: Annotated[
        float | None,
        opt(
            SEARCH,
            "Find the most heads with which one sentence takes at most this long. With --max-bleu-drop: the "
            "fewest heads that keep both limits.",
            metavar="MS",
            needs="evaluate",
            without="target_heads layout",
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        opt(
            SEARCH,
            "How surely the level must keep --max-bleu-drop, such as 0.95: the whole interval of its loss must be "
            "within the drop. Default 0: the measured loss decides.",
            metavar="SHARE",
            needs="max_bleu_drop",
        ),
    ] = None,
    precision: Annotated[
        str,
        opt(
            PRECISION,
            f"Every level is written once for each of these: {names_for('cpu')} for CPUs, {names_for('cuda')} for "
            "CUDA. Separate several with commas.",
        ),
    ] = "fp32",
    calibrate: Annotated[
        Path | None,
        opt(
            PRECISION,
            "Source sentences, needed for int8 and int4; the scales are set from their activations. A few hundred "
            "lines are enough.",
            metavar="FILE",
        ),
    ] = None,
    shortlist: Annotated[
        tuple[Path, Path] | None,
        opt(
            SHORTLISTS,
            "Parallel text, source and target file. Each int8 and int4 level gets a second version, "
            "NAME-shortlist, which is faster because it chooses only among tokens that are likely for the sentence.",
            metavar="SRC TGT",
        ),
    ] = None,
    shortlist_frequent: Annotated[
        int | None,
        opt(
            SHORTLISTS,
            "Number of the most frequent target tokens, which every shortlist holds. Default 100.",
            metavar="N",
            needs="shortlist",
        ),
    ] = None,
    shortlist_best: Annotated[
        int | None,
        opt(
            SHORTLISTS,
            "Number of likely translations of each source token that the shortlist holds. Default 20.",
            metavar="N",
            needs="shortlist",
        ),
    ] = None,
    evaluate: EvalText = None,
    beam: Annotated[int | None, opt(SCORING, "Beam size for --eval. Default 4.", needs="evaluate")] = None,
    test_set: Annotated[
        str | None,
        opt(
            SCORING,
            "Name of the test set in the bundle. Default: the name of the source file without its suffixes.",
            metavar="NAME",
            needs="evaluate",
        ),
    ] = None,
    as_json: Annotated[
        bool, opt(OUTPUT, "Print the bundle's manifest, and the levels that a search tried, as JSON.", "--json")
    ] = False,
) -> None:
    """Compile a checkpoint into a bundle: ONNX models with fewer heads, which `hmc serve` and `hmc translate` load.

    A level is the model without its closed heads. It is checked against the full model with the same heads masked.

    The bundle is written whole or not at all.
    """
    import json

    from hmc.artifact.errors import InvalidRequestError
    from hmc.artifact.precisions import PRECISIONS
    from hmc.artifact.stopping import stoppable
    from hmc.benchmark.budget.compile import CompilePlan
    from hmc.benchmark.budget.find import BudgetSearch
    from hmc.benchmark.measure.text import TestSet
    from hmc.cli.common.consoles import note, open_console
    from hmc.cli.common.options import parse_precisions
    from hmc.cli.common.outputs import say_replaced
    from hmc.cli.compile.arguments import parse_limits, parse_requests, read_shortlist
    from hmc.compiler.bundle.requests import read_calibration
    from hmc.engine.requests.options import MAX_BEAM

    limits = parse_limits(max_bleu_drop, max_latency_ms, confidence)
    precisions = parse_precisions(precision)
    requests = parse_requests(checkpoints, target_heads, layout or [], rank_by, searching=limits is not None)
    if beam is not None and not 1 <= beam <= MAX_BEAM:
        raise InvalidRequestError(f"--beam {beam}: choose 1 to {MAX_BEAM}")
    able = [name for name, traits in PRECISIONS.items() if traits.shortlists]
    if shortlist and not set(able).intersection(precisions):
        raise InvalidRequestError(f"--shortlist is for {' and '.join(able)}: add {' or '.join(able)} to --precision")
    sentences = read_calibration(calibrate) if calibrate else []
    pairs = TestSet.read(*evaluate, name=test_set) if evaluate else None
    shortlist_text, left_out = read_shortlist(shortlist, shortlist_frequent, shortlist_best, pairs)
    files = (calibrate, *(shortlist or ()), *(evaluate or ()), *(layout or ()))
    inputs = [*(request.checkpoint for request in requests), *(file for file in files if file)]
    plan = CompilePlan(requests, out, precisions, sentences, shortlist_text, pairs, 4 if beam is None else beam, inputs)
    search = BudgetSearch(plan, limits) if limits else None
    if search is None:
        plan.check_scorable()
    console = open_console(stderr=True)
    say_replaced(out)
    if left_out:
        note(console, f"--shortlist: {left_out} of its pairs are in --eval and are not learnt from", style="yellow")
    with stoppable(lambda: f"{out} is as it was before; the same command begins anew"):
        if search:
            manifest = _search(search, console, open_console(stderr=as_json))
            searched = {"search": search.to_dict()}
        else:
            manifest = _compile(plan, console)
            searched = {}
    if as_json:
        typer.echo(json.dumps(manifest.model_dump(mode="json") | searched, indent=1))
    else:
        _show_levels(manifest, out)


def _compile(plan: CompilePlan, console: Console) -> Manifest:
    """Compiles, then scores if there is a test set. Each of the two has a progress bar."""
    from functools import partial

    from hmc.benchmark.budget.compile import compile_and_score
    from hmc.cli.common.consoles import note
    from hmc.cli.common.progress import level_steps

    def warn(text: str) -> None:
        note(console, f"--eval: {text}", style="yellow")

    if plan.test_set and plan.not_scored:
        warn(f"levels in {', '.join(plan.not_scored)} run on CUDA, and this machine has none: not scored")
    return compile_and_score(plan, phase=partial(level_steps, console), warn=warn)


def _search(search: BudgetSearch, console: Console, tables: Console) -> Manifest:
    """Searches. What was tried is printed on `tables`, also when the search fails."""
    from hmc.cli.common.progress import level_steps

    try:
        with level_steps(console, None) as progress:
            return search.run(progress)
    finally:
        _show_search(tables, search)


def _show_search(console: Console, search: BudgetSearch) -> None:
    """Prints a table for each precision that was searched, and how the times were measured.

    If any search found something, the reasons why another did not are notes. Otherwise they are in the error.
    """
    from hmc.benchmark.budget.report import refusal, table, warning
    from hmc.cli.common.consoles import note

    found = any(refusal(done) is None for done in search.searches.values())
    for done in search.searches.values():
        console.print(table(done))
        reason = refusal(done) if found else None
        if text := warning(done) or (reason and f"nothing found. {reason}"):
            note(console, f"note: {text}\n")
    if search.searches:
        note(console, f"p50: {search.timed}")


def _show_levels(manifest: Manifest, out: Path) -> None:
    """Prints one line for the bundle, one for each level, and why one of several is the default one."""
    from hmc.artifact.bundle.order import why_default

    typer.echo(f"{out}: version {manifest.version}, {manifest.source_language} to {manifest.target_language}")
    width = max(12, *(len(level.name) for level in manifest.levels))
    for level in manifest.levels:
        quality = f"  BLEU {level.quality.bleu:.2f} ({level.quality.bleu_delta:+.2f})" if level.quality else ""
        size = f"{level.parameters:>12,} parameters  {level.bytes / 2**20:7.1f} MiB"
        default = "  default" if level.name == manifest.default_level else ""
        kept = f"  in fp32: {', '.join(level.fp32_layers)}" if level.fp32_layers else ""
        typer.echo(f"  {level.name:{width}} {level.heads:4} heads  {level.precision}  {size}{quality}{default}{kept}")
    if len(manifest.levels) > 1:
        typer.echo(why_default(manifest))

"""`hmc analyze` correlate, compare, survivors, budgets, trajectory: several texts, systems, checkpoints or runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hmc.artifact.precisions import PRECISIONS
from hmc.cli.analyze.options import INPUT, MEASURE, AsJson, Beam, Checkpoint, Device, Out, Seed, Sentences, beam_size
from hmc.cli.common.options import check_unused, opt


def correlate(
    checkpoint: Checkpoint,
    data: Annotated[
        list[str],
        opt(
            INPUT,
            "Parallel text: 'SRC TGT', 'FILE.tsv', 'FILE.jsonl', 'FILE.parquet' or 'hub:NAME'. Give it twice.",
            metavar="CORPUS",
        ),
    ],
    out: Out,
    effect: Annotated[
        str, opt(MEASURE, "loss or bleu: the change when the head is masked alone; importance: its I_h.")
    ] = "loss",
    sentences: Sentences = 0,
    beam: Beam = None,
    seed: Seed = 12345,
    batch_tokens: Annotated[
        int | None,
        opt(
            MEASURE, "Largest number of padded positions of one forward pass, over all its masks.", show_default="8192"
        ),
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Correlate the effect of each head on two texts: scatter plot, Pearson's and Spearman's coefficient."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.across import correlate
    from hmc.training.analysis.common.masks import BATCH_TOKENS
    from hmc.training.analysis.common.measure import Settings
    from hmc.training.analysis.common.result import Result
    from hmc.training.analysis.common.subject import Progress, load_subject, read_text
    from hmc.training.analysis.figures.masking import draw_correlate

    if effect == "importance":
        check_unused(
            "is for masks, and --effect importance uses none: leave this option out", batch_tokens=batch_tokens
        )
    beam = beam_size(beam, bleu=effect not in ("loss", "importance"), without=f"--effect {effect}")
    settings = Settings(beam=beam, seed=seed, batch_tokens=BATCH_TOKENS if batch_tokens is None else batch_tokens)

    def analyse(progress: Progress) -> Result[Any]:
        subject = load_subject(checkpoint, device)
        texts = [read_text(corpus, subject.languages, sentences) for corpus in data]
        return correlate.analyse(subject, texts, effect, settings, progress)

    carry_out(analyse, correlate.summary, draw_correlate, out, as_json)


def compare(
    results: Annotated[
        list[str],
        typer.Argument(
            help="Name of a system and its result of importance, groups or cumulative.", metavar="NAME=FILE…"
        ),
    ],
    out: Out,
    as_json: AsJson = False,
) -> None:
    """Compare results of one analysis on the same text, e.g. of baseline, Random-N and Impt-N."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.across import compare
    from hmc.training.analysis.figures.masking import draw_compare

    files = compare.parse_names(results)
    carry_out(lambda _: compare.analyse(files), compare.summary, draw_compare, out, as_json)


def survivors(
    checkpoints: Annotated[
        list[Path], typer.Argument(help="Pruned checkpoints, of several budgets or seeds.", metavar="CKPT…")
    ],
    out: Out,
    scores: Annotated[
        Path | None,
        opt(
            INPUT,
            "importance.json of the model before pruning: counts survivors among its most important heads.",
            metavar="FILE",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count the heads left by kind, layer and budget, and the heads that seeds share."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.across import survivors
    from hmc.training.analysis.figures.pruning import draw_survivors

    carry_out(lambda _: survivors.analyse(checkpoints, scores), survivors.summary, draw_survivors, out, as_json)


def budgets(
    bundles: Annotated[
        list[str],
        typer.Argument(help="Name of a series and its bundle, which was compiled with --eval.", metavar="NAME=BUNDLE…"),
    ],
    out: Out,
    precision: Annotated[str, opt(INPUT, f"Precision of the levels: {', '.join(PRECISIONS)}.")] = "fp32",
    as_json: AsJson = False,
) -> None:
    """Plot BLEU against open heads, one series per bundle, with intervals."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.across import budgets, compare
    from hmc.training.analysis.figures.pruning import draw_budgets

    files = compare.parse_names(bundles)
    carry_out(lambda _: budgets.analyse(files, precision), budgets.summary, draw_budgets, out, as_json)


def trajectory(
    files: Annotated[
        list[str],
        typer.Argument(help="Name of a run of hmc prune and its trajectory.json.", metavar="NAME=FILE…"),
    ],
    out: Out,
    as_json: AsJson = False,
) -> None:
    """Plot how gates closed: expected open heads by kind, the budget, and gates that are still undecided."""
    from hmc.artifact.errors import InvalidRequestError
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.across import compare, trajectory
    from hmc.training.analysis.figures.pruning import draw_trajectory

    named = compare.parse_names(files)
    for file in named.values():
        if file.resolve() == (out / "trajectory.json").resolve():
            raise InvalidRequestError(f"--out {out} would overwrite the input {file}; give another folder")
    carry_out(lambda _: trajectory.analyse(named), trajectory.summary, draw_trajectory, out, as_json)

"""`hmc translate`: texts in, translations out, through a server or straight from a bundle."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmc.cli.common.options import (
    WHERE,
    Alignment,
    AttentionHead,
    BackendOptions,
    BulkOptions,
    TokenScores,
    chosen_server,
    opt,
)

if TYPE_CHECKING:
    from hmc.engine.requests.options import Sampling

INPUT = "Input"
SEARCH = "Search"
LIMITS = "Limits on the translation"
SAMPLE = "Sampling"
OUTPUT = "Output"


def command(
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Texts of any length. Without texts, the lines of --source or of stdin are translated, one sentence "
            "each.",
            metavar="[TEXT]...",
        ),
    ] = None,
    source: Annotated[
        list[str] | None,
        opt(
            INPUT,
            "UTF-8 file with one text on each line; `-` is stdin. With --engine also .gz, JSONL, .parquet and "
            "URLs of stores, and repeatable.",
            metavar="FILE",
        ),
    ] = None,
    document: Annotated[
        bool,
        opt(
            INPUT,
            "The input is running text: it is divided into sentences, and its layout stays.",
            "--document",
            without="json_output incremental n_best target_prefix",
        ),
    ] = False,
    segmentation: Annotated[
        str | None,
        opt(
            INPUT,
            "Where a text on the command line, or of --document, is divided: auto (at lines and sentences, if it "
            "has several), sentence or none.",
            needs="document texts",
            without="incremental",
            show_default="auto; with --document sentence",
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        opt(
            INPUT,
            "With --document: copy the matches of this regular expression. Repeatable.",
            metavar="REGEX",
            needs="document",
        ),
    ] = None,
    out: Annotated[
        str | None,
        opt(
            OUTPUT,
            "With --source: write here instead of to standard output. The same command again resumes a run that "
            "was stopped; until the end the lines are in FILE.part. With --engine: the folder to write.",
            "--out",
            "-o",
            metavar="FILE",
            without="document incremental",
        ),
    ] = None,
    restart: Annotated[
        bool, opt(OUTPUT, "With --out: begin anew, and drop the lines of a stopped run.", "--restart", needs="out")
    ] = False,
    *,
    bulk: BulkOptions,
    where: BackendOptions,
    workers: Annotated[
        int | None,
        opt(
            WHERE,
            "With --bundle: batches that run at once, each on --threads threads. More than 1 is faster for files.",
            show_default="as measured; with --engine one for each core, or one on a GPU",
        ),
    ] = None,
    beam: Annotated[
        int | None,
        opt(
            SEARCH,
            "Number of hypotheses that the search keeps for each text; 1 is greedy search.",
            show_default="4",
        ),
    ] = None,
    n_best: Annotated[
        int, opt(SEARCH, "Number of translations to print for each text, best first, separated by tabs.")
    ] = 1,
    length_penalty: Annotated[float, opt(SEARCH, "Hypotheses are ranked by log P / length ^ this.")] = 1.0,
    coverage_penalty: Annotated[
        float, opt(SEARCH, "Weight of a penalty for source tokens that get little attention. 0: none.")
    ] = 0.0,
    patience: Annotated[
        float | None,
        opt(SEARCH, "Stop when patience × beam hypotheses are finished. Default: stop when no better one can follow."),
    ] = None,
    max_length: Annotated[
        int | None,
        opt(LIMITS, "Largest number of tokens of a translation. Default: computed from the length of the text."),
    ] = None,
    min_length: Annotated[int, opt(LIMITS, "Smallest number of tokens of a translation.")] = 1,
    target_prefix: Annotated[str, opt(LIMITS, "Every translation begins with this text.", metavar="TEXT")] = "",
    suppress_unknown: Annotated[bool, opt(LIMITS, "Never write the unknown token.", "--suppress-unknown")] = False,
    suppress_token: Annotated[
        list[str] | None, opt(LIMITS, "Never write this piece of the vocabulary. Repeatable.", metavar="PIECE")
    ] = None,
    suppress_phrase: Annotated[
        list[str] | None, opt(LIMITS, "Never write this phrase. Repeatable.", metavar="TEXT")
    ] = None,
    no_repeat_ngram: Annotated[
        int, opt(LIMITS, "Length in tokens of sequences that may not occur twice. 0: no such rule.")
    ] = 0,
    repetition_penalty: Annotated[float, opt(LIMITS, "Values above 1 make repeated tokens less likely.")] = 1.0,
    sample: Annotated[
        bool, opt(SAMPLE, "Draw tokens at random, instead of searching with a beam.", "--sample", without="beam")
    ] = False,
    temperature: Annotated[
        float | None,
        opt(
            SAMPLE,
            "With --sample: below 1, likely tokens become likelier; above 1, less likely. 1: the model's "
            "probabilities.",
            needs="sample",
        ),
    ] = None,
    top_k: Annotated[
        int | None, opt(SAMPLE, "With --sample: draw only among this many likeliest tokens.", needs="sample")
    ] = None,
    top_p: Annotated[
        float | None,
        opt(
            SAMPLE, "With --sample: draw among the likeliest tokens whose probabilities add up to this.", needs="sample"
        ),
    ] = None,
    seed: Annotated[
        int | None, opt(SAMPLE, "With --sample: the same seed gives the same translations.", needs="sample")
    ] = None,
    incremental: Annotated[
        bool,
        opt(
            OUTPUT,
            "Print each part of a translation as soon as it is certain.",
            "--incremental",
            without="json_output n_best",
        ),
    ] = False,
    json_output: Annotated[bool, opt(OUTPUT, "Print one line of JSON for each text.", "--json")] = False,
    token_scores: TokenScores = False,
    alignment: Alignment = False,
    attention_head: AttentionHead = None,
) -> None:
    """Translate texts. Each line of --source or stdin gives one line of output, as soon as it is ready. Empty lines
    stay empty. A text on the command line may have several sentences and lines: it is divided, and its layout stays."""
    from hmc.cli.common.backends import open_backend
    from hmc.cli.common.records import write_lines, write_pieces, write_texts
    from hmc.cli.common.texts.bulk import one_file, write_bulk
    from hmc.cli.common.texts.files import check_files, opened, write_document, write_file
    from hmc.cli.common.texts.lines import check_stdout, open_lines
    from hmc.engine.requests.options import DecodeOptions
    from hmc.serving.requests.options import Segmentation

    check_stdout()
    options = DecodeOptions(
        beam_size=DecodeOptions.beam_size if beam is None else beam,
        length_penalty=length_penalty,
        max_length=max_length,
        n_best=n_best,
        min_length=min_length,
        patience=patience,
        coverage_penalty=coverage_penalty,
        repetition_penalty=repetition_penalty,
        no_repeat_ngram_size=no_repeat_ngram,
        suppress_unknown=suppress_unknown,
        suppressed_tokens=tuple(suppress_token or ()),
        suppressed_phrases=tuple(suppress_phrase or ()),
        sampling=_sampling(sample, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed),
        token_scores=token_scores,
        alignment=alignment,
        attention_heads=tuple(attention_head or ()),
    )
    selector = where.selector()
    if bulk.engine is not None:
        write_bulk(bulk, where, workers, source or [], out, options, target_prefix, json_output)
        return
    lines_of = one_file(source)
    running_text = document or (bool(texts) and not incremental)
    divide = Segmentation.of(segmentation or ("sentence" if document else "auto"))
    if out is not None:
        target = Path(out)
        read = check_files(texts or [], lines_of, target)
        key = {"selector": selector, "options": options, "prefix": target_prefix, "json": json_output}
        key |= _bundle_of(where)
        with open_backend(where, workers or 0) as backend, opened(read, target, key, restart) as job:
            write_file(backend, job, options, target_prefix, json_output)
        return
    if document:
        with open_backend(where, workers or 0) as backend:
            write_document(backend, texts or [], lines_of, options, keep or [], divide)
        return
    with open_lines(texts or [], lines_of) as lines, open_backend(where, workers or 0) as backend:
        if incremental:
            write_pieces(backend, lines, options, target_prefix)
        else:
            write = partial(write_texts, segmentation=divide) if running_text else write_lines
            write(backend, lines, options, target_prefix, json_output)


def _bundle_of(where: BackendOptions) -> dict[str, object]:
    """What translations of a bundle depend on beside the options; empty if a server translates."""
    from hmc.artifact.bundle.manifest import read_manifest
    from hmc.cli.common.backends import level_of

    if where.bundle is None or chosen_server(where.server, where.bundle) is not None:
        return {}
    manifest = read_manifest(where.bundle)
    level = level_of(manifest, where.selector(), where.device) or manifest.default_level
    return {"bundle": manifest.version, "level": level}


def _sampling(sample: bool, **given: float | None) -> Sampling | None:
    from hmc.engine.requests.options import Sampling

    values = {name: value for name, value in given.items() if value is not None}
    return Sampling(**values) if sample else None  # type: ignore[arg-type]  # each of its own type

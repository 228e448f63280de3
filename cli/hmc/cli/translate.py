"""`hmc translate`: texts in, translations out, through a server or straight from a bundle."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmc.cli.common.options import WHERE, BackendOptions, BulkOptions, check_unused, chosen_server, opt

if TYPE_CHECKING:
    from hmc.engine.requests.options import Sampling
    from hmc.serving.requests.options import Segmentation

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
        bool, opt(INPUT, "The input is running text: it is divided into sentences, and its layout stays.", "--document")
    ] = False,
    segmentation: Annotated[
        str | None,
        opt(
            INPUT,
            "Where a text on the command line, or of --document, is divided: auto (at lines and sentences, if it "
            "has several), sentence or none.",
            show_default="auto; with --document sentence",
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        opt(INPUT, "With --document: copy the matches of this regular expression. Repeatable.", metavar="REGEX"),
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
        ),
    ] = None,
    restart: Annotated[
        bool, opt(OUTPUT, "With --out: begin anew, and drop the lines of a stopped run.", "--restart")
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
        bool, opt(SAMPLE, "Draw tokens at random, instead of searching with a beam.", "--sample")
    ] = False,
    temperature: Annotated[
        float | None,
        opt(
            SAMPLE,
            "With --sample: below 1, likely tokens become likelier; above 1, less likely. 1: the model's "
            "probabilities.",
        ),
    ] = None,
    top_k: Annotated[int | None, opt(SAMPLE, "With --sample: draw only among this many likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, opt(SAMPLE, "With --sample: draw among the likeliest tokens whose probabilities add up to this.")
    ] = None,
    seed: Annotated[int | None, opt(SAMPLE, "With --sample: the same seed gives the same translations.")] = None,
    incremental: Annotated[
        bool, opt(OUTPUT, "Print each part of a translation as soon as it is certain.", "--incremental")
    ] = False,
    json_output: Annotated[bool, opt(OUTPUT, "Print one line of JSON for each text.", "--json")] = False,
    token_scores: Annotated[bool, opt(OUTPUT, "With --json: the score of every token.", "--token-scores")] = False,
    alignment: Annotated[bool, opt(OUTPUT, "With --json: the attention of every token.", "--alignment")] = False,
    attention_head: Annotated[
        list[str] | None,
        opt(
            OUTPUT,
            "With --alignment or --coverage-penalty: take the attention of this head, such as cross.5.3. Repeatable.",
            metavar="HEAD",
        ),
    ] = None,
) -> None:
    """Translate texts. Each line of --source or stdin gives one line of output, as soon as it is ready. Empty lines
    stay empty. A text on the command line may have several sentences and lines: it is divided, and its layout stays."""
    from hmc.artifact.errors import InvalidRequestError
    from hmc.cli.common.backends import open_backend
    from hmc.cli.common.records import write_lines, write_pieces, write_texts
    from hmc.cli.common.texts.bulk import one_file, write_bulk
    from hmc.cli.common.texts.files import check_files, opened, write_document, write_file
    from hmc.cli.common.texts.lines import check_stdout, open_lines
    from hmc.engine.requests.options import DecodeOptions

    check_stdout()
    if sample:
        check_unused("is for searching, and --sample draws tokens: leave one of them out", beam=beam)
    if not alignment and not coverage_penalty:
        check_unused("needs --alignment or --coverage-penalty: add one", attention_head=attention_head)
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
    if (token_scores or alignment) and not json_output:
        raise InvalidRequestError("--token-scores and --alignment are printed as JSON: add --json")
    if incremental and (json_output or n_best > 1):
        raise InvalidRequestError("--incremental writes one plain translation: leave out --json and --n-best")
    selector = where.selector()
    if bulk.engine is not None:
        if texts or document or segmentation or keep or incremental or restart:
            raise InvalidRequestError(
                "--engine translates files: leave out texts, --document, --segmentation, --keep, --incremental and "
                "--restart"
            )
        write_bulk(bulk, where, workers, source or [], out, options, target_prefix, json_output)
        return
    bulk.check_absent()
    lines_of = one_file(source)
    running_text = document or (bool(texts) and not incremental)
    divide = _segmentation(segmentation, running_text, document)
    if restart and out is None:
        raise InvalidRequestError("--restart needs --out FILE: add --out, or leave --restart out")
    if out is not None and (document or incremental):
        raise InvalidRequestError("--out writes a line for each line: leave out --document and --incremental")
    if keep and not document:
        raise InvalidRequestError("--keep needs running text: add --document")
    if document and (json_output or incremental or n_best > 1 or target_prefix):
        raise InvalidRequestError(
            "--document writes plain text: leave out --json, --incremental, --n-best, --target-prefix"
        )
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


def _segmentation(name: str | None, running_text: bool, document: bool) -> Segmentation:
    from hmc.artifact.errors import InvalidRequestError
    from hmc.serving.requests.options import Segmentation

    if name is not None and not running_text:
        raise InvalidRequestError("--segmentation needs running text: add --document, or give texts as arguments")
    return Segmentation.of(name or ("sentence" if document else "auto"))


def _sampling(sample: bool, **given: float | None) -> Sampling | None:
    from hmc.artifact.errors import InvalidRequestError
    from hmc.engine.requests.options import Sampling

    values = {name: value for name, value in given.items() if value is not None}
    if values and not sample:
        raise InvalidRequestError(f"--{next(iter(values)).replace('_', '-')} works only with sampling: add --sample")
    return Sampling(**values) if sample else None  # type: ignore[arg-type]  # each of its own type

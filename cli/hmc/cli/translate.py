"""`hmc translate`: texts in, translations out, through a server or straight from a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmc.cli.options import (
    WHERE,
    Auto,
    Bundle,
    Device,
    LatencyBudgetMs,
    Level,
    MaxBleuDrop,
    MaxHeads,
    Server,
    Threads,
    TlsCa,
    Token,
)

if TYPE_CHECKING:
    from hmc.cli.translators import Desk
    from hmc.serving.options import DecodeOptions, Sampling

SEARCH, LIMITS, SAMPLE, OUTPUT = "Search", "What may be written", "Sampling", "Output"


def command(
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts; without any, --file or stdin.", metavar="[TEXT]...")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="UTF-8 file, a text a line; `-` is stdin.", metavar="FILE")] = None,
    server: Server = None,
    bundle: Bundle = None,
    level: Level = None,
    max_heads: MaxHeads = None,
    max_bleu_drop: MaxBleuDrop = None,
    latency_budget_ms: LatencyBudgetMs = None,
    auto: Auto = False,
    device: Device = "auto",
    threads: Threads = 0,
    workers: Annotated[
        int,
        typer.Option(
            help="With --bundle: batches run at the same time, each on --threads threads; faster for files.",
            rich_help_panel=WHERE,
        ),
    ] = 1,
    token: Token = None,
    tls_ca: TlsCa = None,
    timeout: Annotated[
        float | None,
        typer.Option(help="With --server: seconds for everything; default: no limit.", rich_help_panel=WHERE),
    ] = None,
    beam: Annotated[
        int, typer.Option(help="Hypotheses kept for each text; 1 is greedy search.", rich_help_panel=SEARCH)
    ] = 4,
    n_best: Annotated[
        int, typer.Option(help="Translations of each text, separated by tabs, best first.", rich_help_panel=SEARCH)
    ] = 1,
    length_penalty: Annotated[
        float, typer.Option(help="Exponent of the length normalisation.", rich_help_panel=SEARCH)
    ] = 1.0,
    coverage_penalty: Annotated[
        float, typer.Option(help="Weight of how much of the source is attended to.", rich_help_panel=SEARCH)
    ] = 0.0,
    patience: Annotated[
        float | None, typer.Option(help="Stop when patience × beam hypotheses have ended.", rich_help_panel=SEARCH)
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Most tokens; default: by the text's length.", rich_help_panel=LIMITS)
    ] = None,
    min_length: Annotated[int, typer.Option(help="Fewest tokens.", rich_help_panel=LIMITS)] = 1,
    target_prefix: Annotated[
        str, typer.Option(help="How every translation begins.", metavar="TEXT", rich_help_panel=LIMITS)
    ] = "",
    suppress_unknown: Annotated[
        bool, typer.Option("--suppress-unknown", help="Never write the unknown token.", rich_help_panel=LIMITS)
    ] = False,
    suppress_token: Annotated[
        list[str] | None,
        typer.Option(help="Vocabulary piece never to write; repeatable.", metavar="PIECE", rich_help_panel=LIMITS),
    ] = None,
    suppress_phrase: Annotated[
        list[str] | None,
        typer.Option(help="Phrase never to write; repeatable.", metavar="TEXT", rich_help_panel=LIMITS),
    ] = None,
    no_repeat_ngram: Annotated[
        int, typer.Option(help="No sequence of this many tokens occurs twice; 0: no rule.", rich_help_panel=LIMITS)
    ] = 0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1: repeated tokens are less likely.", rich_help_panel=LIMITS)
    ] = 1.0,
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw tokens at random instead of a beam.", rich_help_panel=SAMPLE)
    ] = False,
    temperature: Annotated[
        float | None, typer.Option(help="With --sample: 1 is the model's own.", rich_help_panel=SAMPLE)
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="With --sample: among the best few tokens.", rich_help_panel=SAMPLE)
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="With --sample: among the tokens of this share.", rich_help_panel=SAMPLE)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="With --sample: the same seed, the same draws.", rich_help_panel=SAMPLE)
    ] = None,
    incremental: Annotated[
        bool,
        typer.Option("--incremental", help="Write each translation as it becomes certain.", rich_help_panel=OUTPUT),
    ] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each text.", rich_help_panel=OUTPUT)
    ] = False,
    token_scores: Annotated[
        bool, typer.Option("--token-scores", help="With --json: every token's score.", rich_help_panel=OUTPUT)
    ] = False,
    alignment: Annotated[
        bool, typer.Option("--alignment", help="With --json: every token's attention.", rich_help_panel=OUTPUT)
    ] = False,
    attention_head: Annotated[
        list[str] | None,
        typer.Option(help="Head that tells it, as cross.5.3; repeatable.", metavar="HEAD", rich_help_panel=OUTPUT),
    ] = None,
) -> None:
    """Translate texts, a line of output for each line of input, as soon as it is ready. Empty lines stay empty."""
    from hmc.artifact.errors import InvalidRequestError
    from hmc.cli.lines import check_stdout, open_lines
    from hmc.cli.translators import Place, open_desk
    from hmc.serving.options import DecodeOptions
    from hmc.serving.selection import Selector

    check_stdout()
    options = DecodeOptions(
        beam_size=beam,
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
    selector = Selector(level, max_heads, max_bleu_drop, latency_budget_ms, auto)
    place = Place(server, bundle, selector, device, threads, workers, token, tls_ca, timeout)
    with open_lines(texts or [], file) as lines, open_desk(place) as desk:
        if incremental:
            _write_pieces(desk, lines, options, target_prefix)
        else:
            _write_lines(desk, lines, options, target_prefix, json_output)


def _write_lines(desk: Desk, lines: Iterator[str], options: DecodeOptions, prefix: str, json_output: bool) -> None:
    import contextlib
    import json

    from hmc.cli.records import plain, record, warn_if_cut

    sent: dict[int, str] = {}
    with contextlib.closing(desk.translate(_remember(lines, sent), options, prefix)) as answers:
        for answer in answers:
            text = sent.pop(answer.index)
            if not json_output:
                warn_if_cut(answer.index, answer.result(), "translated")
            _write((json.dumps(record(text, answer), ensure_ascii=False) if json_output else plain(answer)) + "\n")


def _write_pieces(desk: Desk, lines: Iterator[str], options: DecodeOptions, prefix: str) -> None:
    from hmc.cli.records import BREAKS, warn_if_cut

    for index, text in enumerate(lines):
        written = ""
        for piece in desk.stream(index, text, options, prefix):
            _write(piece.text.translate(BREAKS))
            written += piece.text
            if piece.translation is not None:
                _write(piece.translation.text.removeprefix(written).translate(BREAKS) + "\n")
                warn_if_cut(index, piece.translation, "translated")


def _remember(lines: Iterator[str], sent: dict[int, str]) -> Iterator[str]:
    for index, text in enumerate(lines):
        sent[index] = text
        yield text


def _write(text: str) -> None:
    import sys

    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def _sampling(sample: bool, **given: float | None) -> Sampling | None:
    from hmc.artifact.errors import InvalidRequestError
    from hmc.serving.options import Sampling

    values = {name: value for name, value in given.items() if value is not None}
    if values and not sample:
        raise InvalidRequestError(f"--{next(iter(values)).replace('_', '-')} is about sampling: add --sample")
    return Sampling(**values) if sample else None  # type: ignore[arg-type]  # each of its own type

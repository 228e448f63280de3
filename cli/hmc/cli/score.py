"""`hmc score`: how probable given translations are, through a server or straight from a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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

CHUNK = 64
"""Lines scored in one call."""


def command(
    source: Annotated[Path, typer.Argument(help="UTF-8 file, a text a line.", metavar="SOURCE")],
    reference: Annotated[Path, typer.Argument(help="UTF-8 file, a translation a line.", metavar="REFERENCE")],
    server: Server = None,
    bundle: Bundle = None,
    level: Level = None,
    max_heads: MaxHeads = None,
    max_bleu_drop: MaxBleuDrop = None,
    latency_budget_ms: LatencyBudgetMs = None,
    auto: Auto = False,
    length_penalty: Annotated[float, typer.Option(help="Exponent of the length normalisation.")] = 1.0,
    coverage_penalty: Annotated[float, typer.Option(help="Weight of how much of the source is attended to.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: repeated tokens are less likely.")] = 1.0,
    token_scores: Annotated[bool, typer.Option("--token-scores", help="With --json: every token's score.")] = False,
    alignment: Annotated[bool, typer.Option("--alignment", help="With --json: every token's attention.")] = False,
    attention_head: Annotated[
        list[str] | None, typer.Option(help="Head that tells it, as cross.5.3; repeatable.", metavar="HEAD")
    ] = None,
    device: Device = "auto",
    threads: Threads = 0,
    token: Token = None,
    tls_ca: TlsCa = None,
    timeout: Annotated[
        float | None,
        typer.Option(help="With --server: seconds for each call; default: no limit.", rich_help_panel=WHERE),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each pair.")] = False,
) -> None:
    """Score given translations: a line with log P / length^penalty for each pair of lines, 0 is certain.

    The level is chosen once, and all lines are scored at it: scores of different levels cannot be compared.
    """
    import json

    from hmc.artifact.errors import InvalidRequestError
    from hmc.cli.lines import check_stdout, open_lines
    from hmc.cli.records import record, warn_if_cut
    from hmc.cli.translators import Place, open_desk
    from hmc.serving.options import DecodeOptions
    from hmc.serving.selection import Selector

    check_stdout()
    if (token_scores or alignment) and not json_output:
        raise InvalidRequestError("--token-scores and --alignment are printed as JSON: add --json")
    options = DecodeOptions(
        beam_size=1,
        length_penalty=length_penalty,
        coverage_penalty=coverage_penalty,
        repetition_penalty=repetition_penalty,
        token_scores=token_scores,
        alignment=alignment,
        attention_heads=tuple(attention_head or ()),
    )
    with open_lines([], source) as lines:
        texts = list(lines)
    with open_lines([], reference) as lines:
        references = list(lines)
    if len(texts) != len(references):
        raise InvalidRequestError(f"{source} has {len(texts)} lines and {reference} {len(references)}: pair them up")
    selector = Selector(level, max_heads, max_bleu_drop, latency_budget_ms, auto)
    place = Place(server, bundle, selector, device, threads, 1, token, tls_ca, timeout)
    with open_desk(place) as desk:
        for start in range(0, len(texts), CHUNK):
            chunk = slice(start, start + CHUNK)
            try:
                answers = desk.score(texts[chunk], references[chunk], options)
            except InvalidRequestError as error:
                raise InvalidRequestError(in_file(str(error), start)) from error
            for index, (text, answer) in enumerate(zip(texts[chunk], answers, strict=True), start):
                if not json_output:
                    warn_if_cut(index, answer.result(), "scored with")
                line = json.dumps(record(text, answer), ensure_ascii=False) if json_output else None
                typer.echo(line or f"{answer.result().score:.6f}")


def in_file(message: str, start: int) -> str:
    """What a call says of a text (`text 3: …`, or a server's `texts[3]: …`), said of a line; text 0 is `start` + 1."""
    import re

    return re.sub(r"^texts?(?: |\[)(\d+)\]?: ", lambda found: f"line {start + int(found[1]) + 1}: ", message)

"""`hmc score`: how probable given translations are, through a server or straight from a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmc.cli.common.options import Alignment, AttentionHead, BackendOptions, TokenScores, opt

if TYPE_CHECKING:
    from hmc.artifact.errors import InvalidRequestError

MODEL = "How the score is computed"
OUTPUT = "Output"
CHUNK = 64
"""Lines scored in one call."""


def command(
    source: Annotated[Path, typer.Argument(help="UTF-8 file with one text on each line.", metavar="SOURCE")],
    reference: Annotated[
        Path, typer.Argument(help="UTF-8 file with their translations, line for line.", metavar="REFERENCE")
    ],
    where: BackendOptions,
    length_penalty: Annotated[float, opt(MODEL, "Scores are log P / length ^ this.")] = 1.0,
    coverage_penalty: Annotated[
        float, opt(MODEL, "Weight of a penalty for source tokens that get little attention. 0: none.")
    ] = 0.0,
    repetition_penalty: Annotated[float, opt(MODEL, "Values above 1 make repeated tokens less likely.")] = 1.0,
    token_scores: TokenScores = False,
    alignment: Alignment = False,
    attention_head: AttentionHead = None,
    json_output: Annotated[bool, opt(OUTPUT, "Print one line of JSON for each pair.", "--json")] = False,
) -> None:
    """Score given translations. Prints log P / length^penalty for each pair of lines; 0 means certain.

    All lines are scored at the same level, since scores of different levels cannot be compared.
    """
    import json

    from hmc.artifact.errors import InvalidRequestError
    from hmc.cli.common.backends import open_backend
    from hmc.cli.common.records import record, warn_if_cut
    from hmc.cli.common.texts.lines import check_stdout, open_lines
    from hmc.engine.requests.options import DecodeOptions

    check_stdout()
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
        raise InvalidRequestError(
            f"{source} has {len(texts)} lines and {reference} {len(references)}: each line needs one translation"
        )
    with open_backend(where) as backend:
        for start in range(0, len(texts), CHUNK):
            chunk = slice(start, start + CHUNK)
            try:
                answers = backend.score(texts[chunk], references[chunk], options)
            except InvalidRequestError as error:
                raise InvalidRequestError(in_file(error, start)) from error
            for index, (text, answer) in enumerate(zip(texts[chunk], answers, strict=True), start):
                if not json_output:
                    warn_if_cut(index, answer.result(), "scored with")
                line = json.dumps(record(text, answer), ensure_ascii=False) if json_output else None
                typer.echo(line or f"{answer.result().score:.6f}")


def in_file(error: InvalidRequestError, start: int) -> str:
    """Turns an error about a text or a reference of a call into an error about a line of the file.

    start: index of the line that is text 0. Of several violations, the first is named.
    """
    import re

    if not error.violations:
        return str(error)
    first = error.violations[0]
    found = re.fullmatch(r"(?:text |texts\[|references\[)(\d+)\]?", first.field)
    return first.named(f"line {start + int(found[1]) + 1}") if found else first.description

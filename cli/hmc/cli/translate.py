"""`hmc translate`: texts in, translations out, through a server or straight from a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hmc.serving.answers import StreamAnswer


def command(
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts; without any, --file or stdin.", metavar="[TEXT]...")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="UTF-8 file, a text a line; `-` is stdin.", metavar="FILE")] = None,
    server: Annotated[str | None, typer.Option(help="Server to ask.", metavar="HOST:PORT")] = None,
    bundle: Annotated[Path | None, typer.Option(help="Bundle to load instead.", metavar="DIR")] = None,
    level: Annotated[str | None, typer.Option(help="Level to translate at; default: the default level.")] = None,
    max_heads: Annotated[int | None, typer.Option(help="Or: the best level with at most this many heads.")] = None,
    beam: Annotated[int, typer.Option(help="Hypotheses kept for each text; 1 is greedy search.")] = 4,
    n_best: Annotated[int, typer.Option(help="Translations of each text, separated by tabs, best first.")] = 1,
    length_penalty: Annotated[float, typer.Option(help="Exponent of the length normalisation.")] = 1.0,
    max_length: Annotated[
        int | None, typer.Option(help="Most tokens of a translation; default: by the text's length.")
    ] = None,
    device: Annotated[str, typer.Option(help="With --bundle: auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int, typer.Option(help="With --bundle: threads; 0 takes one for each core.")] = 0,
    token: Annotated[str | None, typer.Option(help="Token that the server wants.", envvar="HMC_TOKEN")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="PEM authorities to trust: connect with TLS.", metavar="FILE")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds for everything; default: no limit.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each text.")] = False,
) -> None:
    """Translate texts, a line of output for each line of input, as soon as it is ready. Empty lines stay empty."""
    import json
    import sys

    from hmc.artifact.errors import InvalidRequestError
    from hmc.cli.lines import open_lines
    from hmc.cli.translators import from_bundle, from_server
    from hmc.serving.options import DecodeOptions
    from hmc.serving.selection import Selector

    if (bundle is None) == (server is None):
        raise InvalidRequestError("give exactly one of --server HOST:PORT and --bundle DIR")
    options = DecodeOptions(beam_size=beam, length_penalty=length_penalty, max_length=max_length, n_best=n_best)
    selector = Selector(name=level, max_heads=max_heads)
    sent: dict[int, str] = {}
    with open_lines(texts or [], file) as lines:
        remembered = _remember(lines, sent)
        if server is not None:
            answers = from_server(remembered, server, selector, options, token=token, tls_ca=tls_ca, timeout=timeout)
        else:
            answers = from_bundle(remembered, Path(bundle or "."), selector, options, device=device, threads=threads)
        for answer in answers:
            text = sent.pop(answer.index)
            line = json.dumps(_record(text, answer), ensure_ascii=False) if json_output else _plain(answer)
            sys.stdout.buffer.write(line.encode() + b"\n")
            sys.stdout.buffer.flush()


def _remember(lines: Iterator[str], sent: dict[int, str]) -> Iterator[str]:
    for index, text in enumerate(lines):
        sent[index] = text
        yield text


def _plain(answer: StreamAnswer) -> str:
    translation = answer.result()
    return "\t".join((translation.text, *translation.alternatives))


def _record(text: str, answer: StreamAnswer) -> dict[str, object]:
    translation = answer.result()
    return {
        "text": text,
        "translation": translation.text,
        "alternatives": list(translation.alternatives),
        "score": translation.score,
        "source_tokens": translation.source_tokens,
        "target_tokens": translation.target_tokens,
        "source_truncated": translation.source_truncated,
        "hit_max_length": translation.hit_max_length,
        "level": answer.level,
        "bundle_version": answer.bundle_version,
        "queue_ms": 1000.0 * translation.queue_s,
        "compute_ms": 1000.0 * translation.compute_s,
    }

"""Printing translations: one line of text or one line of JSON for each."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from hmc.engine.requests.checks import one_line

if TYPE_CHECKING:
    from hmc.cli.common.backends import Backend
    from hmc.engine.requests.options import DecodeOptions
    from hmc.serving.requests.options import Segmentation
    from hmc.serving.requests.results import Alternative, Segment, StreamAnswer, Token, Translation


def write_lines(
    backend: Backend, lines: Iterator[str], options: DecodeOptions, prefix: str, json_output: bool,
    write: Callable[[str], object] | None = None, first: int = 0,
) -> None:  # fmt: skip
    """Translates and writes each line. Each translation begins with `prefix`. write: takes a translation, without a
    line break; None: it is printed. first: number of the first line, from 0."""
    write = write or (lambda made: _write(made + "\n"))
    sent = dict[int, str]()
    with contextlib.closing(backend.translate(_remember(lines, sent), options, prefix, first=first)) as answers:
        for answer in answers:
            text = sent.pop(answer.index)
            if not json_output:
                warn_if_cut(first + answer.index, answer.result(), "translated")
            warn_if_empty(first + answer.index, answer.result())
            write(json.dumps(record(text, answer), ensure_ascii=False) if json_output else plain(answer))


def write_texts(
    backend: Backend, texts: Iterator[str], options: DecodeOptions, prefix: str, json_output: bool,
    segmentation: Segmentation,
) -> None:  # fmt: skip
    """Translates and prints each text of any length. Line breaks stay, unless several hypotheses are printed."""
    for index, text in enumerate(texts):
        answer = backend.text(index, text, options, prefix, segmentation)
        warn_if_empty(index, answer.result(), "text")
        if json_output:
            _write(json.dumps(record(text, answer), ensure_ascii=False) + "\n")
            continue
        warn_if_cut(index, answer.result(), "translated", "text")
        made = plain(answer) if options.n_best > 1 else answer.result().text
        _write(made.removesuffix("\n") + "\n")


def write_pieces(backend: Backend, lines: Iterator[str], options: DecodeOptions, prefix: str) -> None:
    """As `write_lines`, but prints each part of a translation as soon as it is certain."""
    for index, text in enumerate(lines):
        written = ""
        for piece in backend.stream(index, text, options, prefix):
            _write(one_line(piece.text))
            written += piece.text
            if piece.translation is not None:
                _write(one_line(piece.translation.text.removeprefix(written)) + "\n")
                warn_if_cut(index, piece.translation, "translated")
                warn_if_empty(index, piece.translation)


def _remember(lines: Iterator[str], sent: dict[int, str]) -> Iterator[str]:
    for index, text in enumerate(lines):
        sent[index] = text
        yield text


def _write(text: str) -> None:
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def plain(answer: StreamAnswer) -> str:
    """One line with all hypotheses of a text, best first, separated by tabs."""
    return "\t".join(one_line(hypothesis.text) for hypothesis in answer.result().hypotheses)


def warn_if_cut(index: int, translation: Translation, done: str, what: str = "line") -> None:
    """Warns on standard error about a source that was cut. With --json the record has a field for it. what: a line of
    the input, or another kind of text."""
    if translation.source_truncated:
        kept = translation.source_tokens - 1
        sys.stderr.write(
            f"hmc: {what} {index + 1}: only its first {kept} tokens are {done}, since more do not fit the model; "
            "split it into sentences\n"
        )
    if done == "translated":
        warn_if_incomplete(f"{what} {index + 1}", translation)


def warn_if_incomplete(name: str, found: Translation | Segment) -> None:
    """Warns on standard error about a translation in which something may be missing or made up. name: of its
    source."""
    if found.hit_max_length:
        sys.stderr.write(f"hmc: {name}: the translation reached its greatest length and may be incomplete\n")
    elif found.much_shorter:
        sys.stderr.write(f"hmc: {name}: the translation is much shorter than the text; something may be missing\n")
    if found.mostly_unknown:
        sys.stderr.write(
            f"hmc: {name}: the vocabulary does not know most of its words, so the translation is made up; see that the "
            "text is in the language that the model reads\n"
        )


def warn_if_empty(index: int, translation: Translation, what: str = "line") -> None:
    """Warns on standard error about an empty translation of a text that is not blank. what: see `warn_if_cut`."""
    if not translation.text and not translation.blank:
        sys.stderr.write(
            f"hmc: {what} {index + 1}: the translation is empty, though the text is not; try another level or "
            "precision, and see that the text is in the language that the model reads\n"
        )


def record(text: str, answer: StreamAnswer) -> dict[str, Any]:
    """All fields of an answer. It has tokens, alignment and source pieces only if they were requested."""
    translation = answer.result()
    best, *others = translation.hypotheses
    asked = {"source_pieces": list(translation.source_pieces)} if translation.source_pieces else {}
    return {
        "text": text,
        **_hypothesis(best),
        "alternatives": [_hypothesis(other) for other in others],
        "source_tokens": translation.source_tokens,
        "source_truncated": translation.source_truncated,
        "much_shorter": translation.much_shorter,
        "mostly_unknown": translation.mostly_unknown,
        "joined_lines": translation.joined_lines,
        **asked,
        "level": answer.level,
        "bundle_version": answer.bundle_version,
        "queue_ms": 1000.0 * translation.queue_s,
        "compute_ms": 1000.0 * translation.compute_s,
    }


def _hypothesis(found: Alternative) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "translation": found.text,
        "score": found.score,
        "target_tokens": found.target_tokens,
        "hit_max_length": found.hit_max_length,
    }
    if found.tokens:
        fields["tokens"] = [_token(token) for token in found.tokens]
    if found.alignment:
        fields["alignment"] = [list(pair) for pair in found.alignment]
    return fields


def _token(token: Token) -> dict[str, Any]:
    fields: dict[str, Any] = {"piece": token.piece}
    if token.score is not None:
        fields["score"] = token.score
    if token.attention:
        fields["attention"] = list(token.attention)
    return fields

"""How answers are printed: a line of text each, or a line of JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hmc.serving.answers import StreamAnswer
    from hmc.serving.results import Alternative, Token, Translation


BREAKS = str.maketrans("\n\r\t", "   ")
"""A model whose vocabulary has bytes may write what separates lines and hypotheses: JSON has it as it is."""


def plain(answer: StreamAnswer) -> str:
    """All hypotheses of a text, best first, separated by tabs, on one line."""
    return "\t".join(hypothesis.text.translate(BREAKS) for hypothesis in answer.result().hypotheses)


def warn_if_cut(index: int, translation: Translation, done: str) -> None:
    """JSON says it in a field; a plain line cannot."""
    import sys

    if translation.source_truncated:
        kept = translation.source_tokens - 1
        sys.stderr.write(
            f"hmc: line {index + 1}: only its first {kept} tokens are {done}, more do not fit the model; "
            "split it into sentences\n"
        )


def record(text: str, answer: StreamAnswer) -> dict[str, Any]:
    """Everything an answer says. Tokens, alignment and source pieces are there only if they were asked for."""
    translation = answer.result()
    best, *others = translation.hypotheses
    asked = {"source_pieces": list(translation.source_pieces)} if translation.source_pieces else {}
    return {
        "text": text,
        **_hypothesis(best),
        "alternatives": [_hypothesis(other) for other in others],
        "source_tokens": translation.source_tokens,
        "source_truncated": translation.source_truncated,
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

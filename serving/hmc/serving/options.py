"""What a caller may ask of one translation, and what comes back. Plain data: no runtime, no transport."""

from __future__ import annotations

from dataclasses import dataclass, field

from hmc.artifact.errors import InvalidRequestError

MAX_BEAM = 16
MAX_TEXT_BYTES = 64 * 1024
"""Longest text of one sentence, in UTF-8 bytes; longer ones are refused: split them into sentences first."""


@dataclass(frozen=True)
class DecodeOptions:
    """How to search. Raises InvalidRequestError on values out of range."""

    beam_size: int = 4
    """Hypotheses kept per sentence; 1 is greedy search."""
    length_penalty: float = 1.0
    """Finished hypotheses are ranked by log P / length ** length_penalty, length counting EOS."""
    max_length: int | None = None
    """Most target tokens, EOS included; default 2 × source tokens + 10, and never more than the model's positions."""
    n_best: int = 1
    """Hypotheses returned, best first; at most beam_size."""

    def __post_init__(self) -> None:
        if not 1 <= self.beam_size <= MAX_BEAM:
            raise InvalidRequestError(f"beam_size {self.beam_size}: choose 1 to {MAX_BEAM}")
        if not 0.0 <= self.length_penalty <= 10.0:
            raise InvalidRequestError(f"length_penalty {self.length_penalty}: choose 0 to 10")
        if self.max_length is not None and self.max_length < 1:
            raise InvalidRequestError(f"max_length {self.max_length}: choose 1 or more, or leave it out")
        if not 1 <= self.n_best <= self.beam_size:
            raise InvalidRequestError(f"n_best {self.n_best}: choose 1 to beam_size ({self.beam_size})")


@dataclass(frozen=True)
class Hypothesis:
    """One finished translation of a sentence."""

    ids: tuple[int, ...]
    """Target token ids without EOS."""
    score: float
    """log P / length ** length_penalty (natural logarithm)."""
    complete: bool
    """False when the search ran into max_length before EOS."""


@dataclass(frozen=True)
class Decoded:
    """What the engine returns for one sentence."""

    hypotheses: tuple[Hypothesis, ...]
    queue_s: float
    """Seconds between submission and the first computation."""
    compute_s: float
    """Seconds from then to the end, shared with the other sentences of the batch."""


@dataclass(frozen=True)
class Translation:
    """What a caller of `Translator.translate` gets for one text."""

    text: str
    score: float
    source_tokens: int
    target_tokens: int
    source_truncated: bool = False
    """True when the text was longer than the model's positions and was cut."""
    hit_max_length: bool = False
    alternatives: tuple[str, ...] = ()
    """The other hypotheses of an n-best request, best first."""
    queue_s: float = field(default=0.0, compare=False)
    compute_s: float = field(default=0.0, compare=False)

"""The result of one sentence: token ids from the engine, text from the translator."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

SHORTEST = 10
"""Tokens of the shortest source whose translation can be much shorter."""


@dataclass(frozen=True)
class Hypothesis:
    """One finished translation of a sentence, as the engine returns it."""

    ids: tuple[int, ...]
    """Target token ids without EOS."""
    score: float
    """log P / length ** length_penalty (natural logarithm), plus the coverage penalty if there is one."""
    complete: bool
    """False if the hypothesis reached max_length before EOS."""
    token_scores: tuple[float, ...] = field(default=(), compare=False)
    """Log-probability of each token (natural logarithm); EOS is the last one if `complete`."""
    attention: npt.NDArray[np.float32] | None = field(default=None, compare=False)
    """`[T, S]`: attention of each of those T tokens over the S source tokens. None if it was not requested."""


@dataclass(frozen=True)
class Decoded:
    """All hypotheses of one sentence, best first, as the engine returns them."""

    hypotheses: tuple[Hypothesis, ...]
    queue_s: float
    """Seconds from submission to the first computation."""
    compute_s: float
    """Seconds from the first computation to the end. Sentences of one batch are computed in the same seconds."""


@dataclass(frozen=True)
class Token:
    """One target token of a translation."""

    piece: str
    """The vocabulary piece; a leading `▁` marks the start of a word."""
    score: float | None = None
    """Its log-probability given the source and the tokens before it. None if scores were not requested."""
    attention: tuple[float, ...] = ()
    """Its attention over the source tokens, EOS last; sums to 1. Empty if alignment was not requested."""


@dataclass(frozen=True)
class Alternative:
    """One hypothesis of an n-best answer."""

    text: str
    score: float
    """See `Hypothesis.score`."""
    target_tokens: int = 0
    """Tokens of the hypothesis, EOS included."""
    hit_max_length: bool = False
    """Whether it reached max_length before EOS; it may be incomplete."""
    tokens: tuple[Token, ...] = ()
    """Its tokens, with EOS last if it ended. Empty if neither token scores nor alignment were requested."""

    @property
    def alignment(self) -> tuple[tuple[int, int], ...]:
        """Pairs (index of a source token, index of a target token): each target token and the source token to which it
        attends most. Empty if alignment was not requested."""
        return tuple((t.attention.index(max(t.attention)), n) for n, t in enumerate(self.tokens) if t.attention)


@dataclass(frozen=True)
class Segment:
    """A sentence of a text, or a part of one that was translated alone. Offsets count code points."""

    source_begin: int
    source_end: int
    """The offset after its last character."""
    target_begin: int
    target_end: int
    score: float
    """See `Hypothesis.score`."""
    source_tokens: int
    """Tokens of its source, EOS included."""
    target_tokens: int
    """Tokens of its translation, EOS included."""
    hit_max_length: bool = False
    """Whether its translation reached max_length before EOS."""
    tokens: tuple[Token, ...] = ()
    """As in `Alternative`."""
    source_pieces: tuple[str, ...] = ()
    """As in `Translation`."""
    much_shorter: bool = False
    """As in `Translation`."""


@dataclass(frozen=True)
class Translation:
    """The translation of one text."""

    text: str
    score: float
    """See `Hypothesis.score`."""
    source_tokens: int
    """Tokens of the source, EOS included, after any truncation; 0 for a blank text."""
    target_tokens: int
    """Tokens of the translation, EOS included."""
    source_truncated: bool = False
    """Whether the text had more tokens than the model has positions, and its end was cut off."""
    hit_max_length: bool = False
    """Whether the translation reached max_length before EOS; it may be incomplete."""
    alternatives: tuple[Alternative, ...] = ()
    """The other hypotheses of an n-best request, best first."""
    tokens: tuple[Token, ...] = ()
    """Its tokens, with EOS last if it ended. Empty if neither token scores nor alignment were requested."""
    source_pieces: tuple[str, ...] = ()
    """The source tokens, EOS last. Empty if alignment was not requested."""
    queue_s: float = field(default=0.0, compare=False)
    """See `Decoded.queue_s`."""
    compute_s: float = field(default=0.0, compare=False)
    """See `Decoded.compute_s`."""
    segments: tuple[Segment, ...] = ()
    """The sentences of the text. Empty if they were not requested."""
    much_shorter: bool = False
    """Whether the translation of the text, or of a sentence of it, has less than half as many tokens as its source,
    which has SHORTEST tokens or more; something may be missing."""

    @property
    def blank(self) -> bool:
        """Whether the text was blank. A blank text is not computed, so its times are no measure of a level."""
        return not self.source_tokens

    @property
    def hypotheses(self) -> tuple[Alternative, ...]:
        """All hypotheses, best first. The first one is this translation."""
        best = Alternative(self.text, self.score, self.target_tokens, self.hit_max_length, self.tokens)
        return (best, *self.alternatives)

    @property
    def alignment(self) -> tuple[tuple[int, int], ...]:
        """Pairs (index of a source token, index of a target token): each target token and the source token to which it
        attends most. Empty if alignment was not requested."""
        return self.hypotheses[0].alignment


@dataclass(frozen=True)
class DocumentPiece:
    """The next piece of a translated document. All pieces together are the translation."""

    text: str
    """A translated sentence and what is copied before it; or only what is copied."""
    segment: Segment | None = None
    """The sentence. None if the piece has none."""
    level: str = ""
    """Name of the level that serves the document."""
    bundle_version: str = ""


@dataclass(frozen=True)
class Partial:
    """A piece of a translation that is still being searched for."""

    text: str
    """The text that has become certain since the previous piece. Empty in the last piece."""
    translation: Translation | None = None
    """The finished translation in the last piece; None in all pieces before it."""

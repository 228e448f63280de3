"""What comes back for one sentence: from the engine in token ids, from the translator as text."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Hypothesis:
    """One finished translation of a sentence."""

    ids: tuple[int, ...]
    """Target token ids without EOS."""
    score: float
    """log P / length ** length_penalty (natural logarithm), coverage penalty included."""
    complete: bool
    """False when the search ran into max_length before EOS."""
    token_scores: tuple[float, ...] = field(default=(), compare=False)
    """Log-probability of every token, EOS last if complete."""
    attention: npt.NDArray[np.float32] | None = field(default=None, compare=False)
    """`[T, S]`: where each of those tokens looked in the source; None unless asked for."""


@dataclass(frozen=True)
class Decoded:
    """What the engine returns for one sentence."""

    hypotheses: tuple[Hypothesis, ...]
    queue_s: float
    """Seconds between submission and the first computation."""
    compute_s: float
    """Seconds from then to the end, shared with the other sentences of the batch."""


@dataclass(frozen=True)
class Token:
    """One target token of a translation."""

    piece: str
    """As the vocabulary writes it: `▁` starts a word."""
    score: float | None = None
    """Its log-probability given what stands before it; None unless asked for."""
    attention: tuple[float, ...] = ()
    """Its attention over the source tokens, EOS last; empty unless asked for."""


@dataclass(frozen=True)
class Alternative:
    """One hypothesis of an n-best answer."""

    text: str
    score: float
    """See `Hypothesis.score`."""
    target_tokens: int = 0
    """EOS included."""
    hit_max_length: bool = False
    tokens: tuple[Token, ...] = ()
    """Its tokens, EOS last if it ended; empty unless scores or alignment were asked for."""

    @property
    def alignment(self) -> tuple[tuple[int, int], ...]:
        """(source token, target token) of every target token: the source token it attends to most."""
        return tuple((t.attention.index(max(t.attention)), n) for n, t in enumerate(self.tokens) if t.attention)


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
    alternatives: tuple[Alternative, ...] = ()
    """The other hypotheses of an n-best request, best first."""
    tokens: tuple[Token, ...] = ()
    """The tokens of the text, EOS last if it ended; empty unless scores or alignment were asked for."""
    source_pieces: tuple[str, ...] = ()
    """The source tokens, EOS last; empty unless alignment was asked for."""
    queue_s: float = field(default=0.0, compare=False)
    compute_s: float = field(default=0.0, compare=False)

    @property
    def blank(self) -> bool:
        """Whether there was nothing to translate; it then took no time, which says nothing about a level."""
        return not self.source_tokens

    @property
    def hypotheses(self) -> tuple[Alternative, ...]:
        """All hypotheses, best first; the first is the translation itself."""
        best = Alternative(self.text, self.score, self.target_tokens, self.hit_max_length, self.tokens)
        return (best, *self.alternatives)

    @property
    def alignment(self) -> tuple[tuple[int, int], ...]:
        """(source token, target token) of every target token: the source token it attends to most."""
        return self.hypotheses[0].alignment


@dataclass(frozen=True)
class Partial:
    """A piece of a translation that is still being made."""

    text: str
    """What has become certain since the piece before; empty in the last one."""
    translation: Translation | None = None
    """The finished translation, in the last piece alone."""

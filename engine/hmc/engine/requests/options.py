"""How a sentence is decoded; docs/decoding.md has the formulas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hmc.artifact.errors import InvalidRequestError
from hmc.engine.requests.checks import check_number, check_text, check_whole, check_within

MAX_BEAM = 16
"""Largest beam, and most samples of one text."""
MAX_SUPPRESSED = 256
"""Most suppressed tokens and phrases that one request may give, counted together."""
MAX_PHRASE = 1000
"""Most characters of one suppressed token, suppressed phrase or attention head name."""
MAX_HEADS = 1024
"""Most attention heads that one request may name."""
MAX_TOKENS = 32768
"""Default of an engine's `max_tokens`. The caches of Transformer-base take 6 KB a token at int8, 24 KB at fp32."""
NUCLEUS_TOKENS = 256
"""Most tokens among which top-k and top-p sampling draw."""


@dataclass(frozen=True)
class Sampling:
    """Draws each token at random, in place of beam search. Raises InvalidRequestError if a value is out of range."""

    temperature: float = 1.0
    """From 0.01 to 100. Tokens are drawn from softmax(log P / temperature)."""
    top_k: int | None = None
    """From 1 to 256. Only the k most probable tokens can be drawn (Fan et al. 2018). None: all can."""
    top_p: float = 1.0
    """Above 0, up to 1. Only the fewest tokens whose probabilities sum to this can be drawn (Holtzman et al. 2020)."""
    seed: int | None = None
    """0 or more. The same seed and options draw the same translation of the same text. None: a new seed each time."""

    def __post_init__(self) -> None:
        check_within("temperature", self.temperature, 0.01, 100.0)
        if self.top_k is not None:
            check_whole("top_k", self.top_k, 1, NUCLEUS_TOKENS)
        check_number("top_p", self.top_p)
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidRequestError(f"top_p {self.top_p}: choose more than 0, up to 1")
        if self.seed is not None:
            check_whole("seed", self.seed, 0, 2**63 - 1)

    @property
    def truncated(self) -> bool:
        """Whether top_k or top_p limits the tokens that can be drawn."""
        return self.top_k is not None or self.top_p < 1.0


@dataclass(frozen=True)
class DecodeOptions:
    """How to search for a translation. Raises InvalidRequestError if a value is out of range.

    Lengths count target tokens, the end-of-sentence token (EOS) included.
    """

    beam_size: int = 4
    """From 1 to 16: hypotheses kept for a sentence. 1 is greedy search. Ignored when sampling."""
    length_penalty: float = 1.0
    """From 0 to 10: finished hypotheses are ranked by log P / length ** length_penalty."""
    max_length: int | None = None
    """Longest translation. None: 2 × source tokens + 10. Larger values are clamped to the model's positions − 1."""
    n_best: int = 1
    """Hypotheses returned, best first: from 1 to beam_size. When sampling: independent samples, from 1 to 16."""
    min_length: int = 1
    """Shortest translation: EOS cannot be chosen earlier."""
    patience: float | None = None
    """Above 0, up to 10. The search stops when patience × beam_size hypotheses have ended (Kasai et al. 2022).
    None: it stops when no running hypothesis can score higher than the ended ones."""
    coverage_penalty: float = 0.0
    """From 0 to 10: β in β · Σ_i log min(Σ_j a_ij, 1), which is added to the score of a hypothesis when it ends
    (Wu et al. 2016, equation 14)."""
    repetition_penalty: float = 1.0
    """From 0.1 to 10: θ of Keskar et al. (2019). A positive logit of a token already written is divided by θ, a
    negative one is multiplied by θ."""
    no_repeat_ngram_size: int = 0
    """From 0 to 100: no sequence of this many tokens occurs twice in a translation. 0: repetition is allowed."""
    suppress_unknown: bool = False
    """Never choose the unknown token."""
    suppressed_tokens: tuple[str, ...] = ()
    """Vocabulary pieces that are never chosen, such as `▁Haus`; `▁` marks the start of a word."""
    suppressed_phrases: tuple[str, ...] = ()
    """Texts that never occur: the token sequence that the tokenizer makes of each is suppressed."""
    sampling: Sampling | None = None
    """Draw tokens at random. None: beam search."""
    token_scores: bool = False
    """Return the tokens of every hypothesis with their log-probabilities (natural logarithm)."""
    alignment: bool = False
    """Return the tokens of every hypothesis with their attention over the source tokens."""
    attention_heads: tuple[str, ...] = ()
    """Cross-attention heads, such as `cross.5.3` (layer, original index). Their mean is the attention that `alignment`
    and `coverage_penalty` read. Empty: all open heads of the last layer that has open cross-attention heads."""

    def __post_init__(self) -> None:
        for name in ("suppressed_tokens", "suppressed_phrases", "attention_heads"):
            texts: object = getattr(self, name)
            if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
                raise InvalidRequestError(f"{name} takes a list: put a single one in a list")
            object.__setattr__(self, name, _checked_texts(name, texts))
        check_whole("beam_size", self.beam_size, 1, MAX_BEAM)
        check_within("length_penalty", self.length_penalty, 0, 10)
        if self.max_length is not None:
            check_whole("max_length", self.max_length, 1)
        check_whole("min_length", self.min_length, 1)
        if self.max_length is not None and self.min_length > self.max_length:
            raise InvalidRequestError(f"min_length {self.min_length}: choose 1 to max_length ({self.max_length})")
        if self.patience is not None:
            check_number("patience", self.patience)
            if not 0.0 < self.patience <= 10.0:
                raise InvalidRequestError(f"patience {self.patience}: choose more than 0, up to 10, or leave it out")
        self._check_n_best()
        check_within("coverage_penalty", self.coverage_penalty, 0, 10)
        check_within("repetition_penalty", self.repetition_penalty, 0.1, 10)
        check_whole("no_repeat_ngram_size", self.no_repeat_ngram_size, 0, 100)
        if len(self.suppressed_tokens) + len(self.suppressed_phrases) > MAX_SUPPRESSED:
            raise InvalidRequestError(f"suppressed tokens and phrases: give at most {MAX_SUPPRESSED} of them together")
        if len(self.attention_heads) > MAX_HEADS:
            raise InvalidRequestError(f"{len(self.attention_heads)} attention_heads: give at most {MAX_HEADS}")
        if self.sampling is not None and (self.patience is not None or self.coverage_penalty):
            raise InvalidRequestError("patience and coverage_penalty are for beam search: leave them out when sampling")

    def _check_n_best(self) -> None:
        check_whole("n_best", self.n_best, 1, MAX_BEAM)
        if self.sampling is not None:
            return
        if not 1 <= self.n_best <= self.beam_size:
            raise InvalidRequestError(f"n_best {self.n_best}: choose 1 to beam_size ({self.beam_size})")
        if self.enough is not None and self.n_best > self.enough:
            raise InvalidRequestError(
                f"n_best {self.n_best}: the search stops after {self.enough} hypotheses; raise patience or beam_size"
            )

    @property
    def rows(self) -> int:
        """Rows that the sentence takes in the decode batch: one for each hypothesis that runs."""
        return self.n_best if self.sampling is not None else self.beam_size

    @property
    def enough(self) -> int | None:
        """Ended hypotheses at which the search stops: patience × beam_size, rounded, at least 1. None: no limit."""
        return None if self.patience is None else max(1, int(self.patience * self.beam_size + 0.5))

    @property
    def needs_attention(self) -> bool:
        """Whether decoding has to read cross-attention weights."""
        return self.alignment or self.coverage_penalty > 0


def _checked_texts(name: str, values: Iterable[object]) -> tuple[str, ...]:
    texts = []
    for index, text in enumerate(values):
        check_text(text, f"{name}[{index}]")
        if len(str(text)) > MAX_PHRASE:
            raise InvalidRequestError(f"{name}[{index}] has {len(str(text))} characters: give at most {MAX_PHRASE}")
        texts.append(str(text))
    return tuple(texts)

"""What a caller may ask of one translation (docs/decoding.md). Plain data: no runtime, no transport."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real

from hmc.artifact.errors import InvalidRequestError

MAX_BEAM = 16
MAX_TEXT_BYTES = 64 * 1024
"""Longest text of one sentence, in UTF-8 bytes; longer ones are refused: split them into sentences first."""
MAX_SUPPRESSED = 256
"""Most suppressed tokens and phrases of one request, together."""
MAX_PHRASE = 1000
"""Most characters of one of them."""
MAX_HEADS = 1024
"""Most attention heads that one request names."""
MAX_TOKENS = 32768
"""Default of an engine's `max_tokens`: Transformer-base keeps 6 KB a token at int8, 24 KB at fp32."""
NUCLEUS_TOKENS = 256
"""Most tokens that top-k and top-p sampling choose among."""
MAX_INT32 = 2**31 - 1
"""Largest whole number that the protocol carries where there is no smaller bound."""


@dataclass(frozen=True)
class Sampling:
    """Draws tokens at random in place of beam search. Raises InvalidRequestError on values out of range."""

    temperature: float = 1.0
    """Tokens are drawn from softmax(log P / temperature)."""
    top_k: int | None = None
    """Draws among the k most probable tokens only (Fan et al. 2018); None: among all."""
    top_p: float = 1.0
    """Draws among the fewest tokens that hold this probability (Holtzman et al. 2020); 1: among all."""
    seed: int | None = None
    """The same seed draws the same translation of the same text; None: another one each time."""

    def __post_init__(self) -> None:
        _within("temperature", self.temperature, 0.01, 100.0)
        if self.top_k is not None:
            whole("top_k", self.top_k, 1, NUCLEUS_TOKENS)
        _number("top_p", self.top_p)
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidRequestError(f"top_p {self.top_p}: choose more than 0, up to 1")
        if self.seed is not None:
            whole("seed", self.seed, 0, 2**63 - 1)

    @property
    def truncated(self) -> bool:
        """Whether only some tokens can be drawn."""
        return self.top_k is not None or self.top_p < 1.0


@dataclass(frozen=True)
class DecodeOptions:
    """How to search. Raises InvalidRequestError on values out of range."""

    beam_size: int = 4
    """Hypotheses kept per sentence; 1 is greedy search. Of no meaning with sampling."""
    length_penalty: float = 1.0
    """Finished hypotheses are ranked by log P / length ** length_penalty, length counting EOS."""
    max_length: int | None = None
    """Most target tokens, EOS included; default 2 × source tokens + 10, and never more than the model's positions."""
    n_best: int = 1
    """Hypotheses returned, best first: at most beam_size, or with sampling the number of independent samples."""
    min_length: int = 1
    """Fewest target tokens, EOS included: before that EOS is not chosen."""
    patience: float | None = None
    """Stop once patience × beam_size hypotheses have ended (Kasai et al. 2022); None: once none can improve."""
    coverage_penalty: float = 0.0
    """β of β · Σ_i log min(Σ_j a_ij, 1), added to the score of a hypothesis that ends (Wu et al. 2016, equation 14)."""
    repetition_penalty: float = 1.0
    """θ by which the logits of tokens already written are divided, or multiplied if negative (Keskar et al. 2019)."""
    no_repeat_ngram_size: int = 0
    """No token sequence of this length occurs twice in a translation; 0: no such rule."""
    suppress_unknown: bool = False
    """The unknown token is never chosen."""
    suppressed_tokens: tuple[str, ...] = ()
    """Vocabulary pieces that are never chosen, such as `▁Haus`."""
    suppressed_phrases: tuple[str, ...] = ()
    """Texts whose token sequence, as the tokenizer writes it, never occurs."""
    sampling: Sampling | None = None
    """Draw at random in place of beam search."""
    token_scores: bool = False
    """Return every token with its log-probability."""
    alignment: bool = False
    """Return every target token's attention over the source."""
    attention_heads: tuple[str, ...] = ()
    """Cross-attention heads, such as `cross.5.3`, whose mean is the attention of alignment and coverage penalty; none:
    all open heads of the last layer that has any."""

    def __post_init__(self) -> None:
        for name in ("suppressed_tokens", "suppressed_phrases", "attention_heads"):
            given: object = getattr(self, name)
            if isinstance(given, str | bytes) or not isinstance(given, Iterable):
                raise InvalidRequestError(f"{name} takes a list: put a single one in a list")
            object.__setattr__(self, name, _words(name, given))
        whole("beam_size", self.beam_size, 1, MAX_BEAM)
        _within("length_penalty", self.length_penalty, 0, 10)
        if self.max_length is not None:
            whole("max_length", self.max_length, 1)
        whole("min_length", self.min_length, 1)
        if self.max_length is not None and self.min_length > self.max_length:
            raise InvalidRequestError(f"min_length {self.min_length}: choose 1 to max_length ({self.max_length})")
        if self.patience is not None:
            _number("patience", self.patience)
            if not 0.0 < self.patience <= 10.0:
                raise InvalidRequestError(f"patience {self.patience}: choose more than 0, up to 10, or leave it out")
        self._check_n_best()
        _within("coverage_penalty", self.coverage_penalty, 0, 10)
        _within("repetition_penalty", self.repetition_penalty, 0.1, 10)
        whole("no_repeat_ngram_size", self.no_repeat_ngram_size, 0, 100)
        if len(self.suppressed_tokens) + len(self.suppressed_phrases) > MAX_SUPPRESSED:
            raise InvalidRequestError(f"suppressed tokens and phrases: give at most {MAX_SUPPRESSED} of them together")
        if len(self.attention_heads) > MAX_HEADS:
            raise InvalidRequestError(f"{len(self.attention_heads)} attention_heads: give at most {MAX_HEADS}")
        if self.sampling is not None and (self.patience is not None or self.coverage_penalty):
            raise InvalidRequestError("patience and coverage_penalty guide a beam: leave them out when sampling")

    def _check_n_best(self) -> None:
        whole("n_best", self.n_best, 1, MAX_BEAM)
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
        """Hypotheses that run at once."""
        return self.n_best if self.sampling is not None else self.beam_size

    @property
    def enough(self) -> int | None:
        """Ended hypotheses that stop the search: patience × beam_size, rounded, at least 1."""
        return None if self.patience is None else max(1, int(self.patience * self.beam_size + 0.5))

    @property
    def needs_attention(self) -> bool:
        """Whether cross-attention weights are read while decoding."""
        return self.alignment or self.coverage_penalty > 0


@dataclass(frozen=True)
class Target:
    """What a caller already knows of one text's translation."""

    text: str = ""
    """How it begins; or with `complete`, all of it."""
    complete: bool = False
    """The text is the whole translation: it is only scored."""


def targets_of(texts: Sequence[str], known: Sequence[str], *, complete: bool) -> list[Target]:
    """One target for each text: of `known`, or empty ones if there are none and they need not be complete.

    Raises InvalidRequestError unless texts and known pair up.
    """
    name = "references" if complete else "target_prefixes"
    for what, given in (("texts", texts), (name, known)):
        check_list(given, what)
    if not known and not complete:
        return [Target()] * len(texts)
    if len(known) != len(texts):
        raise InvalidRequestError(f"{len(known)} {name} for {len(texts)} texts: give one for each")
    return [Target(text, complete) for text in known]


def scoring_options(options: DecodeOptions | None) -> DecodeOptions:
    """What of the options has meaning for a translation that is given. Raises InvalidRequestError for sampling."""
    options = options or DecodeOptions()
    if options.sampling is not None:
        raise InvalidRequestError("a given translation is scored, not sampled: leave sampling out")
    return DecodeOptions(
        beam_size=1,
        length_penalty=options.length_penalty,
        coverage_penalty=options.coverage_penalty,
        repetition_penalty=options.repetition_penalty,
        token_scores=options.token_scores,
        alignment=options.alignment,
        attention_heads=options.attention_heads,
    )


def whole(name: str, value: object, low: int, high: int = MAX_INT32) -> None:
    """Raises InvalidRequestError unless the value is a whole number from low to high."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidRequestError(f"{name} {value!r}: choose a whole number")
    if not low <= int(value) <= high:
        bound = f"or more, up to {high}" if high >= MAX_INT32 else f"to {high}"
        raise InvalidRequestError(f"{name} {value}: choose {low} {bound}")


def _words(name: str, given: Iterable[object]) -> tuple[str, ...]:
    words = []
    for index, word in enumerate(given):
        check_text(word, f"{name}[{index}]")
        if len(str(word)) > MAX_PHRASE:
            raise InvalidRequestError(f"{name}[{index}] has {len(str(word))} characters: at most {MAX_PHRASE} may be")
        words.append(str(word))
    return tuple(words)


def check_text(text: object, name: str) -> None:
    """Raises InvalidRequestError for what is no text, or one that UTF-8 cannot write."""
    if not isinstance(text, str):
        raise InvalidRequestError(f"{name} is {text!r:.100}: give a text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{name} cannot be written as UTF-8: character {error.start} is {text[error.start]!a}; decode the input "
            "with its own encoding"
        ) from error


def check_list(texts: object, name: str) -> None:
    """Raises InvalidRequestError for what is no list of texts, and for a text as `check_text`, by its place."""
    if isinstance(texts, str | bytes):
        raise InvalidRequestError(f"{name} takes a list: put a single text in a list")
    if not (hasattr(texts, "__len__") and hasattr(texts, "__getitem__")):
        raise InvalidRequestError(f"{name} takes a list, and not a {type(texts).__name__}: put the texts in a list")
    for index in range(len(texts)):
        check_text(texts[index], f"{name}[{index}]")


def _number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidRequestError(f"{name} {value!r}: choose a number")


def _within(name: str, value: float, low: float, high: float) -> None:
    _number(name, value)
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} {value}: choose {low} to {high}")

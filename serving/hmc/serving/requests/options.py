"""The options of a request beside those of decoding: how its texts are divided, and the targets that callers give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from hmc.artifact.errors import InvalidRequestError
from hmc.engine.requests.checks import check_list
from hmc.engine.requests.options import DecodeOptions

MAX_TEXT_BYTES = 64 * 1024
"""Longest text, in UTF-8 bytes. A longer text is refused: the caller should split it into sentences."""
MAX_ANSWER_TOKENS = 32768
"""Most source tokens of a text that is divided and answered as a whole: about 130 KB of English. It bounds what one
text may cost. A longer text is refused: `TranslateDocument` answers it sentence by sentence."""


@dataclass(frozen=True)
class Target:
    """A translation, or the beginning of one, that the caller gives."""

    text: str = ""
    """The beginning of the translation. With `complete`: the whole translation."""
    complete: bool = False
    """Whether `text` is the whole translation, which is then only scored."""


NO_TARGET = Target()


def targets_of(texts: Sequence[str], targets: Sequence[str], *, complete: bool) -> list[Target]:
    """Makes one target for each text out of `targets`: references if `complete`, target prefixes otherwise.

    Prefixes may be left out (`targets` empty): every target is then empty. Raises InvalidRequestError if there is not
    one for each text, and for a value that is no list of texts.
    """
    name = "references" if complete else "target_prefixes"
    for what, values in (("texts", texts), (name, targets)):
        check_list(values, what)
    if not targets and not complete:
        return [NO_TARGET] * len(texts)
    if len(targets) != len(texts):
        raise InvalidRequestError(f"{len(targets)} {name} for {len(texts)} texts: give one for each")
    return [Target(text, complete) for text in targets]


def scoring_options(options: DecodeOptions | None) -> DecodeOptions:
    """The options that scoring a given translation heeds; every other option takes its default.

    Raises InvalidRequestError if `sampling` is set.
    """
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


MAX_KEPT = 4096
"""Most phrases that one request may keep."""
MAX_KEPT_PHRASE = 1000
"""Most characters of one phrase that is kept."""


class Segmentation(Enum):
    """Whether and where texts are divided before they are translated."""

    AUTO = "auto"
    """A text of one sentence on one line that the model has room for is translated as one. All others are divided."""
    SENTENCE = "sentence"
    """Every text is divided at lines and sentences, and sentences that the model has no room for at clauses."""
    NONE = "none"
    """No text is divided. One that the model has no room for is refused by the service, and cut by `Translator`."""

    @classmethod
    def of(cls, name: Segmentation | str) -> Segmentation:
        """A segmentation by its name. Raises InvalidRequestError for a name that none has."""
        try:
            return cls(name)
        except ValueError:
            names = ", ".join(each.value for each in cls)
            raise InvalidRequestError(f"segmentation {name!r}: choose {names}") from None


@dataclass(frozen=True)
class TextOptions:
    """Raises InvalidRequestError if a value is out of range."""

    segmentation: Segmentation = Segmentation.AUTO
    return_segments: bool = False
    """Return where each sentence of a text lies in it and in its translation."""
    keep: tuple[str, ...] = ()
    """Phrases that are copied into the translation as they are."""

    def __post_init__(self) -> None:
        check_list(self.keep, "keep")
        object.__setattr__(self, "keep", tuple(self.keep))
        if len(self.keep) > MAX_KEPT:
            raise InvalidRequestError(f"{len(self.keep)} phrases in keep: give at most {MAX_KEPT}")
        for index, phrase in enumerate(self.keep):
            if not phrase.strip():
                raise InvalidRequestError(f"keep[{index}] is blank: leave it out")
            if len(phrase) > MAX_KEPT_PHRASE:
                raise InvalidRequestError(f"keep[{index}] has {len(phrase)} characters: give at most {MAX_KEPT_PHRASE}")

"""How a request wants its texts treated before and after the search: divided into sentences, phrases kept."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hmc.artifact.errors import InvalidRequestError
from hmc.serving.requests.checks import check_list

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

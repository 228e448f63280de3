"""What dividing texts needs to know about a model."""

from __future__ import annotations

from typing import Protocol


class SourceSide(Protocol):
    """The source side of a model; `hmc.serving.text.tokenizer.Source` is the real one."""

    @property
    def language(self) -> str:
        """The language of the source, a BCP 47 tag."""
        ...

    @property
    def target_language(self) -> str:
        """The language of the target, a BCP 47 tag."""
        ...

    @property
    def room(self) -> int:
        """Most tokens of a text, EOS not counted."""
        ...

    def count(self, text: str) -> int:
        """Tokens of a text, EOS not counted."""
        ...

    def fits(self, text: str) -> bool:
        """Whether the model has room for a text."""
        ...

    def code(self, text: str) -> str:
        """The code of the target language that a text begins with; empty if there is none."""
        ...

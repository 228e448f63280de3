"""Tokenizers of models from and into many languages, where each side begins with the token of its language.

M2M100 and NLLB: the source is `[source language, pieces …, EOS]`, and the target `[target language, pieces …, EOS]`.
"""

from __future__ import annotations

import json

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError, model_validator

from hmc.artifact.errors import InvalidArtifactError
from hmc.artifact.tokenizer.files import LANGUAGES, MarianFiles
from hmc.artifact.tokenizer.marian import MarianTokenizer
from hmc.artifact.tokenizer.pieces import FIX


class LanguageTokens(BaseModel):
    """The content of languages.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    """The language of all sources."""
    target: str
    """The language of targets where a text names no other."""
    codes: dict[str, NonNegativeInt]
    """Language → its token."""
    special: tuple[NonNegativeInt, ...] = ()
    """Further tokens that are no text, such as `<s>`."""

    @model_validator(mode="after")
    def _known(self) -> LanguageTokens:
        for side in ("source", "target"):
            if getattr(self, side) not in self.codes:
                raise ValueError(
                    f"{side} language {getattr(self, side)!r} is none of the model's: {', '.join(self.codes)}"
                )
        return self

    def names(self) -> tuple[str, ...]:
        """The languages as texts name them, such as `>>deu_Latn<<`, sorted."""
        return tuple(sorted(f">>{code}<<" for code in self.codes))

    def content(self) -> bytes:
        """languages.json."""
        return (json.dumps(self.model_dump(mode="json"), indent=1) + "\n").encode()


def read_languages(content: bytes) -> LanguageTokens:
    """Reads languages.json. Raises InvalidArtifactError."""
    try:
        return LanguageTokens.model_validate_json(content)
    except ValidationError as error:
        problems = [f"{LANGUAGES}: {'.'.join(map(str, each['loc']))} {each['msg']}".strip() for each in error.errors()]
        raise InvalidArtifactError("tokenizer", problems, FIX) from error


class MultilingualTokenizer(MarianTokenizer):
    """As `MarianTokenizer`; both sides share a vocabulary. A source may begin with its target's language, such as
    `>>de<<`."""

    def __init__(self, files: MarianFiles) -> None:
        """Raises InvalidArtifactError when a model, the vocabulary or languages.json cannot be read."""
        assert files.languages is not None
        self._languages = read_languages(files.languages)
        super().__init__(files)
        codes = self._languages.codes
        if outside := [code for code, token in codes.items() if token >= self.size]:
            problem = f"{LANGUAGES}: the token of {outside[0]} is outside the vocabulary of {self.size}"
            raise InvalidArtifactError("tokenizer", [problem], FIX)
        tokens = {*codes.values(), *self._languages.special}
        self._special |= tokens
        self.codes = list(self._languages.names())
        self._codes = {f">>{code}<<": token for code, token in codes.items()}
        self._source_ids = self._target_ids = {p: i for p, i in self._source_ids.items() if i not in tokens}

    def encode(self, text: str, *, target: bool = False, dropout: float = 0.0) -> list[int]:
        """See `Tokenizer`. The first token of a source is its language; that of a target is in `opening`."""
        if target:
            return super().encode(text, target=True, dropout=dropout)
        ids = super().encode(self._split_code(text)[1], target=True, dropout=dropout)
        return [self._languages.codes[self._languages.source], *ids] if ids else ids

    def opening(self, text: str = "") -> list[int]:
        """See `Tokenizer`. Raises InvalidRequestError for a language that the model does not have."""
        code, _ = self._split_code(text)
        return [self._languages.codes[self._languages.target] if code is None else code]

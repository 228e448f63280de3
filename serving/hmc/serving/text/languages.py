"""The languages of a bundle: which tags of a request fit it, and the target token of a multilingual model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import langcodes

from hmc.artifact.bundle.manifest import Manifest
from hmc.artifact.errors import InvalidArtifactError, InvalidRequestError
from hmc.artifact.tokenizer.files import from_contents
from hmc.artifact.tokenizer.tokenizer import LANGUAGE_CODE, language_codes

ANY = "mul"
"""The tag of several languages (ISO 639-2). As a model's source it fits every language."""


@dataclass(frozen=True)
class Languages:
    """The languages from and into which a bundle translates, as BCP 47 tags."""

    source: str
    targets: tuple[str, ...]
    codes: tuple[str, ...] = ()
    """The token of each target, such as `>>deu<<`; empty if the model has a single target and no such tokens."""

    @classmethod
    def read(cls, bundle: Path, manifest: Manifest) -> Languages:
        """Reads the languages of a bundle: its manifest, and the codes that its vocabulary has.

        A tokenizer that cannot be read has no codes here; loading a level reports what is wrong with it.
        """
        codes: tuple[str, ...] = ()
        with suppress(InvalidArtifactError, OSError):
            files = {name: (bundle / name).read_bytes() for name in manifest.tokenizer_files}
            codes = language_codes(from_contents(files))
        targets = tuple(standard_tag(code.strip("<>")) for code in codes) or (standard_tag(manifest.target_language),)
        return cls(standard_tag(manifest.source_language), targets, codes)

    def reads(self, language: str) -> bool:
        """Whether texts of this language can be the source. Raises InvalidRequestError for a malformed tag."""
        return look_up(language, [self.source], "source_language") is not None or self.source == ANY

    def writes(self, language: str) -> bool:
        """Whether this language can be the target. Raises InvalidRequestError for a malformed tag."""
        return look_up(language, self.targets, "target_language") is not None

    def code(self, language: str | None) -> str:
        """The token that chooses a target language; empty for none, and for a model without such tokens.

        Raises InvalidRequestError for a malformed tag, and for a language that the model does not write.
        """
        if language is None:
            return ""
        index = look_up(language, self.targets, "target_language")
        if index is None:
            raise InvalidRequestError(f"target_language {language!r}: this model has {', '.join(self.targets)}")
        return self.codes[index] if self.codes else ""

    def __str__(self) -> str:
        return f"{self.source} → {', '.join(self.targets)}"


def with_code(text: str, code: str) -> str:
    """A source text that begins with the token of its target language. Blank texts, and texts that begin with this
    token, stay as they are.

    code: such as `>>deu<<`; empty: every text stays as it is. Raises InvalidRequestError for a text that begins with
    another token.
    """
    if not code or not text.strip():
        return text
    own = LANGUAGE_CODE.match(text)
    if own is None:
        return f"{code} {text}"
    if own[1] != code:
        raise InvalidRequestError(
            f"the text begins with {own[1]}, but target_language chooses {code}: leave one of them out"
        )
    return text


def standard_tag(language: str) -> str:
    """The shortest standard form of a tag, such as `de` for `deu`; the language as it is, if it is no tag."""
    try:
        return langcodes.standardize_tag(language)
    except ValueError:  # LanguageTagError
        return language


def look_up(language: str, available: Sequence[str], field: str) -> int | None:
    """The index of the tag that fits `language`, or None: RFC 4647's lookup, which drops one subtag of `language` after
    the other (`de-AT` finds `de`). Tags are also equal if one is the macrolanguage of the other (`cmn`, `zh`).

    field: names the tag in the error. Raises InvalidRequestError for a malformed tag."""
    with suppress(ValueError):
        return available.index(language)
    if not re.fullmatch(r"[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*", language):
        raise InvalidRequestError(
            f"{field} {language!r}: write a BCP 47 tag such as de, or an ISO 639 code such as deu"
        )
    for macro in (False, True):
        known = [_standard(tag, macro=macro) for tag in available]
        subtags = _standard(language, macro=macro).split("-")
        while subtags:
            with suppress(ValueError):
                return known.index("-".join(subtags))
            subtags.pop()
    return None


@lru_cache(maxsize=1024)
def _standard(language: str, *, macro: bool) -> str:
    try:
        return langcodes.standardize_tag(language, macro=macro).lower()
    except ValueError:
        return language.lower()

"""The tokens file: who may call, as hashes of tokens and names of client certificates, with scopes and limits."""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hmc.artifact.errors import InvalidRequestError, field_problems
from hmc.artifact.git_lfs import why
from hmc.serving.requests.call import Principal, Scope

NAME = r"^[A-Za-z0-9_-]{1,64}$"
Name = Annotated[str, Field(pattern=NAME)]
"""A token's name. It is a bare key in TOML, and safe in logs and in labels of metrics."""
TOKEN_BYTES = 32
"""Random bytes of a new token. Nobody can guess 256 random bits, so one round of SHA-256 is enough at rest. Slow hashes
such as scrypt protect words that people choose, and would cost every call milliseconds."""


class TokenEntry(BaseModel):
    """One line of the tokens file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: Annotated[str | None, Field(pattern=r"^[0-9a-f]{64}$")] = None
    """SHA-256 of the token, in lower-case hexadecimal. Either this or `certificate`."""
    certificate: Annotated[str | None, Field(min_length=1)] = None
    """The SPIFFE ID or the common name in a verified client certificate."""
    scopes: Annotated[frozenset[Scope], Field(min_length=1)]
    """What the caller may do."""
    texts_per_second: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    """Texts a second, in the long run. None: any number."""
    burst: Annotated[int | None, Field(ge=1)] = None
    """Texts at once after a pause. None: those of one second."""
    max_characters: Annotated[int | None, Field(ge=1)] = None
    """Most characters in all texts of one call, or in one text of a stream."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The caller's share of a busy server, relative to other callers."""

    @model_validator(mode="after")
    def _check(self) -> TokenEntry:
        if (self.sha256 is None) == (self.certificate is None):
            raise ValueError("give exactly one of sha256 and certificate")
        if self.burst is not None and self.texts_per_second is None:
            raise ValueError("burst needs texts_per_second")
        return self

    def caller(self, name: str) -> Principal:
        """The caller that this entry describes."""
        return Principal(name, self.scopes, self.weight, self.max_characters)


class TokensFile(BaseModel):
    """The whole file: a table `tokens` with an entry for each name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: Annotated[dict[Name, TokenEntry], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> TokensFile:
        for field in ("sha256", "certificate"):
            owners: dict[str, str] = {}
            for name, entry in self.tokens.items():
                value = getattr(entry, field)
                if value is not None and owners.setdefault(value, name) != name:
                    raise ValueError(f"{owners[value]} and {name} have the same {field}")
        return self


def read_tokens(path: Path) -> TokensFile:
    """Reads a tokens file: JSON if its name ends in `.json`, else TOML. Raises InvalidRequestError, which names all
    problems."""
    try:
        content = path.read_text(encoding="utf-8")
        values: Any = json.loads(content) if path.suffix == ".json" else tomllib.loads(content)
        return TokensFile.model_validate(values)
    except OSError as error:
        raise InvalidRequestError(f"tokens: cannot read {path}: {error.strerror}; check the path") from error
    except ValidationError as error:
        listed = "\n".join(f"  - {problem}" for problem in field_problems(error))
        raise InvalidRequestError(f"tokens: {path} cannot be used:\n{listed}\n{ADVICE}") from error
    except ValueError as error:  # not UTF-8, not TOML, not JSON
        raise InvalidRequestError(f"tokens: {path} {why(path, f'cannot be read: {error}; {ADVICE}')}") from error


ADVICE = "`hmc token new NAME --scope translate` prints a line for this file"


def new_token() -> str:
    """A random token that can be sent as metadata."""
    return "hmc_" + secrets.token_urlsafe(TOKEN_BYTES)


def digest(token: str) -> str:
    """SHA-256 of a token in hexadecimal, as the file has it."""
    return hashlib.sha256(token.encode()).hexdigest()


def line_of(name: str, token: str, scopes: Sequence[str], limits: dict[str, float]) -> str:
    """The line of the tokens file for a token. limits: other fields of `TokenEntry`. Raises InvalidRequestError."""
    values: dict[str, Any] = {"sha256": digest(token), "scopes": list(scopes), **limits}
    if not re.fullmatch(NAME, name):
        raise InvalidRequestError(f"name {name!r}: choose 1 to 64 letters, digits, - and _")
    if unknown := [scope for scope in scopes if scope not in get_args(Scope)]:
        raise InvalidRequestError(f"scope {unknown[0]}: choose {', '.join(get_args(Scope))}")
    for key, value in limits.items():
        least = "1 or more" if key in ("burst", "max_characters") else "a number above 0"
        if not 0 < value < math.inf:
            raise InvalidRequestError(f"{key} {value:g}: choose {least}")
    if "burst" in limits and "texts_per_second" not in limits:
        raise InvalidRequestError("burst: it is about texts_per_second; add that, or leave burst out")
    TokensFile.model_validate({"tokens": {name: values}})
    written = ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items())
    return f"tokens.{name} = {{ {written} }}"

"""Settings of a bulk translation: what is read, how it is translated, and what is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from hmc.artifact.errors import InvalidRequestError
from hmc.engine.requests.options import DecodeOptions

OutputFormat = Literal["text", "jsonl", "parquet"]


@dataclass(frozen=True)
class BulkSettings:
    """Everything on which the written bytes depend, except the corpus and the bundle.

    Raises InvalidRequestError if a value is out of range.
    """

    options: DecodeOptions = field(default_factory=DecodeOptions)
    target_prefix: str = ""
    """Every translation begins with this text."""
    code: str = ""
    """The token of the target language, with which every text begins; empty: none."""
    text_field: str | None = None
    """The field of JSONL, or the column of Parquet, that holds the text. None: the lines are text."""
    output: OutputFormat = "text"
    shard_lines: int = 2000
    """Lines in each file of translations. A run that is killed translates at most the files in work again."""

    def __post_init__(self) -> None:
        if self.output not in get_args(OutputFormat):
            raise InvalidRequestError(f"output {self.output!r}: choose {', '.join(get_args(OutputFormat))}")
        if self.shard_lines < 1:
            raise InvalidRequestError(f"shard_lines {self.shard_lines}: choose 1 or more")
        for name in ("token_scores", "alignment"):
            if getattr(self.options, name):
                raise InvalidRequestError(f"{name}: files keep no numbers of tokens; leave it out")
        if self.options.sampling is not None and self.options.sampling.seed is None:
            raise InvalidRequestError("seed: a run that goes on has to draw the same samples; give one")

    def identity(self) -> dict[str, Any]:
        """Returns the settings as JSON values. Decoding options at their default are left out."""
        default = vars(DecodeOptions())
        changed = {name: value for name, value in vars(self.options).items() if value != default[name]}
        if self.options.sampling is not None:
            changed["sampling"] = vars(self.options.sampling)
        return {
            "options": changed,
            "target_prefix": self.target_prefix,
            "code": self.code,
            "field": self.text_field,
            "format": self.output,
            "shard_lines": self.shard_lines,
        }

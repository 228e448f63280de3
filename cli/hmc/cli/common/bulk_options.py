"""Options of `hmc translate --engine`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hmc.cli.common.options import opt

PANEL = "Many lines, with --engine"


@dataclass(frozen=True)
class BulkOptions:
    """The options that only a bulk translation has."""

    engine: Annotated[
        str | None,
        opt(
            PANEL,
            "Translate a corpus of any size into the folder --out: `local` in this process, `ray` as tasks of Ray. "
            "Both write the same files, and the same command goes on with a run that was stopped.",
            metavar="local|ray",
        ),
    ] = None
    field: Annotated[
        str | None,
        opt(PANEL, "The field of JSONL, or the column of Parquet (.parquet), that holds the text.", metavar="NAME"),
    ] = None
    output: Annotated[
        str | None,
        opt(
            PANEL,
            "What is written: text, or jsonl or parquet with number, text, translation, score, level and error of "
            "each line.",
            "--format",
            metavar="text|jsonl|parquet",
            show_default="text",
        ),
    ] = None
    shard_lines: Annotated[
        int | None, opt(PANEL, "Lines in each file of translations.", metavar="N", show_default="2000")
    ] = None

    def check_absent(self) -> None:
        """Raises InvalidRequestError if one is given without --engine."""
        from hmc.artifact.errors import InvalidRequestError

        for name, value in (("field", self.field), ("format", self.output), ("shard-lines", self.shard_lines)):
            if value is not None:
                raise InvalidRequestError(f"--{name} is about --engine: add --engine local, or leave it out")

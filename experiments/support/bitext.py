"""Parallel text for `sizes`: most lines train the vocabulary and shortlists, the rest are translated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.tokenizer.tokenizer import open_tokenizer
from hmc.benchmark.measure.text import TestSet
from hmc.compiler.lexicon import ShortlistText

HELD_OUT = 20
"""Every 20th line is translated, and not used for learning."""


@dataclass(frozen=True)
class Bitext:
    """Parallel text, split into lines to learn from and lines to translate."""

    sources: list[str]
    targets: list[str]
    held_out: list[str]
    """Source lines to translate."""

    @classmethod
    def read(cls, source: Path, target: Path) -> Bitext:
        """Reads two files. Raises InvalidRequestError if they have different numbers of lines."""
        pairs = TestSet.read(source, target)
        assert pairs.references is not None
        both = list(zip(pairs.sources, pairs.references, strict=True))
        kept = [pair for line, pair in enumerate(both) if line % HELD_OUT]
        return cls([s for s, _ in kept], [t for _, t in kept], [s for s, _ in both[::HELD_OUT]])

    @property
    def shortlist(self) -> ShortlistText:
        """The text to learn a lexicon from."""
        return ShortlistText(self.sources, self.targets)

    def sentences(self, checkpoint: Checkpoint, count: int, length: int) -> list[list[int]]:
        """Ids with EOS, exactly `length` each: held-out lines, joined where they are shorter, and cut."""
        tokenizer = open_tokenizer(checkpoint.tokenizer)
        found: list[list[int]] = []
        lines = iter(self.held_out)
        while len(found) < count:
            ids: list[int] = []
            while len(ids) < length - 1:
                ids += tokenizer.encode(next(lines))
            found.append([*ids[: length - 1], checkpoint.architecture.eos_id])
        return found

"""Real text for base_size.py: what a vocabulary and shortlists are learnt from, and sentences that are not among it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hmc.artifact.checkpoint import Checkpoint
from hmc.artifact.tokenizer import open_tokenizer
from hmc.benchmark.text import TestSet
from hmc.compiler.shortlist_text import ShortlistText

HELD_OUT = 20
"""One line of so many is translated and not learnt from."""


@dataclass(frozen=True)
class Bitext:
    """Parallel lines."""

    sources: list[str]
    targets: list[str]
    held_out: list[str]
    """Source lines to translate."""

    @classmethod
    def read(cls, source: Path, target: Path) -> Bitext:
        """Raises InvalidRequestError for files that do not pair up."""
        pairs = TestSet.read(source, target)
        assert pairs.references is not None
        both = list(zip(pairs.sources, pairs.references, strict=True))
        kept = [pair for line, pair in enumerate(both) if line % HELD_OUT]
        return cls([s for s, _ in kept], [t for _, t in kept], [s for s, _ in both[::HELD_OUT]])

    @property
    def shortlist(self) -> ShortlistText:
        """What lexica are learnt from."""
        return ShortlistText(self.sources, self.targets)

    def sentences(self, checkpoint: Checkpoint, count: int, length: int) -> list[list[int]]:
        """Ids with EOS, exactly `length` each: held-out lines, joined where they are shorter, and cut."""
        tokenizer, found = open_tokenizer(checkpoint.tokenizer), []
        lines = iter(self.held_out)
        while len(found) < count:
            ids: list[int] = []
            while len(ids) < length - 1:
                ids += tokenizer.encode(next(lines))
            found.append([*ids[: length - 1], checkpoint.architecture.eos_id])
        return found

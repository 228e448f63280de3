"""How much room batches may need for the keys and values of their sentences."""

from __future__ import annotations

from collections.abc import Mapping

from hmc.serving.batch import Batch
from hmc.serving.jobs import Job, Mode


class TokenBudget:
    """What is left of it while sentences are admitted: rows times the positions of the longest, `most` for a batch."""

    def __init__(self, most: int, batches: Mapping[Mode, Batch]) -> None:
        self.most, self.refused = most, False
        self._batches = {mode: (batch.rows, batch.longest) for mode, batch in batches.items()}

    def take(self, job: Job) -> bool:
        """Counts a sentence to the batch of its mode, if that has room for it; an empty one always has."""
        rows, longest = self._batches.get(job.mode, (0, 0))
        rows, longest = rows + job.mode.rows, max(longest, job.longest)
        self.refused = rows > job.mode.rows and rows * longest > self.most
        if not self.refused:
            self._batches[job.mode] = rows, longest
        return not self.refused

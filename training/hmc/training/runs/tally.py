"""What the updates of a run did: their mean loss since the last line of the log, and which were skipped."""

from __future__ import annotations

import torch
from torch import Tensor

from hmc.artifact.errors import InvalidRequestError

MOST_SKIPPED = 10
"""A run stops when so many updates in a row were skipped, because their loss or gradient was NaN or infinite."""


class Tally:
    """Counts updates on their device: only `line` and `check` make a GPU wait. All processes count the same."""

    def __init__(self, device: torch.device) -> None:
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._tokens, self._skipped, self._in_a_row, self._longest = (
            torch.zeros((), dtype=torch.int64, device=device) for _ in range(4)
        )

    def add(self, loss: Tensor, tokens: Tensor, finite: Tensor) -> None:
        """Adds an update. loss: summed over its tokens (nats). finite: False if it was skipped. All are scalars."""
        self._loss = self._loss + torch.where(finite, loss, 0.0)
        self._tokens = self._tokens + finite * tokens
        self._skipped = self._skipped + ~finite
        self._in_a_row = (self._in_a_row + 1) * ~finite
        self._longest = torch.maximum(self._longest, self._in_a_row)

    def line(self) -> dict[str, float]:
        """Starts anew; returns the mean `loss` per token of the updates since the last line, and how many were
        `skipped`, if any were. Without any update there is no loss. Raises as `check`."""
        self.check()
        tokens, skipped = int(self._tokens), int(self._skipped)
        found = {"loss": float(self._loss) / tokens} if tokens else {}
        for counted in (self._loss, self._tokens, self._skipped):
            counted.zero_()
        return found | ({"skipped": float(skipped)} if skipped else {})

    def state(self) -> list[float]:
        """What a resumed run needs for the same next line: the summed loss, its tokens and the skipped updates."""
        return [float(counted) for counted in (self._loss, self._tokens, self._skipped)]

    def restore(self, state: list[float]) -> None:
        """Goes on from a `state`; an empty one is that of the start."""
        for counted, value in zip((self._loss, self._tokens, self._skipped), state, strict=False):
            counted.fill_(value)

    def check(self) -> bool:
        """Returns whether the last update was made. Raises InvalidRequestError when too many in a row were skipped."""
        if int(self._longest) >= MOST_SKIPPED:
            raise InvalidRequestError(
                f"{int(self._longest)} updates in a row had a loss or gradient that was NaN or infinite, and were "
                "skipped: training has diverged. The last saved state is from before. Choose a lower learning rate, a "
                "longer warm-up, or gradient clipping, and another --out"
            )
        return not int(self._in_a_row)

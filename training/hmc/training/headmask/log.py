"""How often HeadMask masks each head, and how often the same ones: what `headmask.json` of a run folder holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hmc.artifact.model.heads import HeadLayout

FILE = "headmask.json"


class MaskLog:
    """Counts the masks of the updates on their device: only `line`, `state` and `note` make a GPU wait.

    With a mask for each part of a batch, an update counts the mean of the masks of the first process.
    """

    def __init__(self, layout: HeadLayout) -> None:
        """layout: the heads that a mask has, in its order."""
        self._heads = [str(head) for head in layout.heads()]
        self._counts = torch.zeros(len(self._heads))
        self._updates = 0
        self._last: Tensor | None = None
        self._again, self._pairs = torch.zeros(()), 0
        self.history: list[dict[str, Any]] = []
        """`{"step", "updates", "masked"}` of every `note`: the counts until then."""

    def add(self, masks: Tensor) -> None:
        """Counts the masks of one update, `[parts, total]`, 0 = masked."""
        masked = (masks == 0).float().mean(0)
        # A run makes its masks before its model goes to the GPU.
        self._counts, self._again = self._counts.to(masked.device), self._again.to(masked.device)
        self._counts, self._updates = self._counts + masked, self._updates + 1
        if self._last is not None:
            self._again = self._again + (masked * self._last.to(masked.device)).sum() / masked.sum()
            self._pairs += 1
        self._last = masked

    def line(self) -> dict[str, float]:
        """Starts anew; returns the mean share of masked heads that the update before had masked too (`masked again`).

        Without two updates in a row there is nothing to return.
        """
        found = {"masked again": float(self._again) / self._pairs} if self._pairs else {}
        self._again, self._pairs = torch.zeros_like(self._again), 0
        return found

    def note(self, step: int, folder: Path) -> None:
        """Adds the counts to the history, and writes it to `headmask.json` in `folder`."""
        self.history.append({"step": step, "updates": self._updates, "masked": self._rounded()})
        content = {"heads": self._heads, "history": self.history}
        (folder / FILE).write_text(json.dumps(content) + "\n", encoding="utf-8")

    def state(self) -> dict[str, Any]:
        """What a resumed run needs for the same next line and counts."""
        last = None if self._last is None else self._last.tolist()
        pairs = {"last": last, "again": float(self._again), "pairs": self._pairs}
        return {"updates": self._updates, "masked": self._counts.tolist(), "history": self.history} | pairs

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a `state`; an empty one is that of the start."""
        if state:
            self._updates, self.history = state["updates"], state["history"]
            self._counts = torch.tensor(state["masked"], device=self._counts.device)
        if state.get("last"):  # a state of an earlier version has none
            self._last = torch.tensor(state["last"], device=self._counts.device)
            self._again, self._pairs = torch.tensor(state["again"], device=self._counts.device), state["pairs"]

    def _rounded(self) -> list[float]:
        return [round(value, 3) for value in self._counts.tolist()]

"""Made-up answers of decoders with the search inside, whose state stays on the device.

A step of such a decoder writes the state of every sentence in place: `next_lengths` onto `lengths`, and so on. Here
every running sentence gets one more token at each step. It ends at a drawn length, with k hypotheses of equal length,
or at its limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.support.counting.answers import TYPES, Lengths, array_at
from experiments.support.counting.watching import Run
from hmc.artifact.model.architecture import Architecture

RUNS_BEFORE_REPLAY = 3
"""How often ONNX Runtime executes a graph in the run that captures it."""
LATEST_BRANCH = 4
"""Tokens for which the rows of a sentence have nodes of their own; before, they share them."""
TOKEN = 7


class SearchAnswers:
    """A listener of `Watch.listeners` that answers runs of `decoder_search_…`."""

    def __init__(self, arch: Architecture, lengths: Lengths, seed: int = 3) -> None:
        self.arch, self.lengths = arch, lengths
        self._seed = seed
        self.restart()

    def restart(self) -> None:
        """The next batch draws what the last one drew."""
        self.rng = np.random.default_rng(self._seed)

    def __call__(self, run: Run) -> None:
        """Writes the state after this run."""
        if run.role == "step" and "report" in run.outputs:
            for _ in range(RUNS_BEFORE_REPLAY if run.first else 1):
                self._advance(run)

    def _advance(self, run: Run) -> None:
        types = {o.name: TYPES[o.type] for o in (*run.session.inputs_meta, *run.session.outputs_meta)}

        def read(name: str) -> npt.NDArray[Any]:
            return array_at(run.inputs[name], types[name])

        def write(name: str, value: Any, where: Any = ...) -> None:
            if name in run.outputs:
                array_at(run.outputs[name], types[name])[where] = value

        limits, fresh = read("limits"), read("fresh") == 1
        lengths = np.where(fresh, 0, read("lengths"))
        running = (limits > 0) & (fresh | (read("done") == 0))
        lengths = lengths + running
        rows = read("tokens").shape[1]
        ends = self.lengths.ends(lengths.astype(np.int64), self.rng) & (lengths >= read("minimums"))
        ends = running & (ends | (lengths >= limits))
        write("next_lengths", lengths)
        write("next_done", np.where(running, ends, 1))
        write("next_fresh", 0)
        write("next_tokens", TOKEN, running)
        write("next_totals", -lengths[:, None] - np.arange(rows) * 0.1)
        self._history(write, running, lengths - 1, rows)
        at = np.flatnonzero(ends)
        for name, value in (
            ("totals", -np.arange(rows) - 1.0), ("ranks", -np.arange(rows) - 1.0), ("rows", np.arange(rows)),
            ("lengths", lengths[at, None]), ("complete", lengths[at, None] < limits[at, None]), ("finals", -0.1),
        ):  # fmt: skip
            write(f"next_ended_{name}", value, at)
        left = running & ~ends
        most = int(lengths[left].max(initial=0))
        nodes = most if "node_bias" not in run.inputs else min(rows * most, most + LATEST_BRANCH * (rows - 1))
        write("report", [int(left.sum()), nodes])

    def _history(self, write: Any, running: npt.NDArray[np.bool_], entry: npt.NDArray[Any], rows: int) -> None:
        at = np.flatnonzero(running)
        where = at, entry[at]
        write("next_history_tokens", TOKEN, where)
        write("next_history_parents", np.arange(rows), where)
        write("next_history_scores", -1.0, where)

"""Reads what searches on a device have written down about some sentences, with one small graph (`collect.onnx`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from onnxruntime import InferenceSession

from hmc.engine.arrays import Arrays
from hmc.engine.decoding.history import Ended
from hmc.engine.runtime.memory.account import LevelMemory
from hmc.engine.runtime.memory.mirrored import Arrangement, MirroredArrays, arrangement_bytes
from hmc.engine.runtime.memory.views import DeviceArray

FEWEST_STEPS = 16
"""Steps that are read: so many, or twice as many, four times, …, and sentences a power of two: so few shapes occur."""
PARTS = {
    "collected_doubles": ("tensor(double)", ("ended_ranks", "ended_totals"), ()),
    "collected_ints": (
        "tensor(int32)",
        ("ended_lengths", "ended_rows", "ended_complete"),
        ("history_tokens", "history_parents"),
    ),
    "collected_floats": ("tensor(float)", ("ended_finals",), ("history_scores",)),
}
"""Output → its element type, and what lies side by side in it: arrays of k numbers for each sentence, then of T · k."""


class Collector:
    """The graph, bound to the arrays of the searches of one mode."""

    def __init__(self, session: InferenceSession, state: Mapping[str, DeviceArray], memory: LevelMemory) -> None:
        """state: the arrays of all slots, by the names of the graph's inputs. Takes memory for what is read; raises
        FailedPreconditionError if there is too little."""
        self._session = session
        self._inputs = {i.name: state[i.name] for i in session.get_inputs() if i.name in state}
        self._slots, self._longest, self._rows = state["history_tokens"].shape
        largest = self._arrangement(_power_of_two(self._slots), self._longest)
        self._arrays = MirroredArrays(memory, arrangement_bytes(largest), "searches")
        self._binding = session.io_binding()
        self._bound: tuple[int, int] | None = None
        """(sentences, steps) of the shapes that are bound."""

    def collect(self, slots: Sequence[int], steps: int) -> Ended:
        """The present results of the sentences in these slots, and at least the first `steps` entries of their
        histories. It is valid until the next call."""
        count = _power_of_two(len(slots))
        steps = min(max(_power_of_two(max(steps, 1)), FEWEST_STEPS), self._longest)
        if (count, steps) != self._bound:
            self._bind(count, steps)
        host = self._arrays.host
        host["slots"][:] = slots[-1]
        host["slots"][: len(slots)] = slots
        self._arrays.write("slots")
        self._session.run_with_iobinding(self._binding)
        self._arrays.read()
        arrays: Arrays = {}
        k = self._rows
        for output, (_, ended, histories) in PARTS.items():
            gathered = host[output][: len(slots)]
            for i, name in enumerate(ended):
                arrays[name] = gathered[:, i * k : (i + 1) * k]
            for i, name in enumerate(histories):
                first = len(ended) * k + i * steps * k
                arrays[name] = gathered[:, first : first + steps * k].reshape(len(slots), steps, k)
        return Ended.from_arrays(arrays)

    def warm_up(self) -> None:
        """Runs every shape, the largest first, so that later runs take no memory."""
        counts = [1 << power for power in range(_power_of_two(self._slots).bit_length())]
        steps = [self._longest]
        while steps[-1] > FEWEST_STEPS:
            steps.append(max(_power_of_two(steps[-1]) // 2, FEWEST_STEPS))
        for count, most in product(reversed(counts), steps):
            self.collect([0] * count, most)

    def _arrangement(self, count: int, steps: int) -> Arrangement:
        k = self._rows
        arrangement: dict[str, tuple[str, Sequence[int]]] = {"slots": ("tensor(int64)", (count,))}
        for output, (kind, ended, histories) in PARTS.items():
            arrangement[output] = kind, (count, len(ended) * k + len(histories) * steps * k)
        return arrangement

    def _bind(self, count: int, steps: int) -> None:
        """Lays out what is read of so many sentences and steps, and binds the graph to it."""
        views = self._arrays.arrange(self._arrangement(count, steps))
        for name, view in self._inputs.items():
            view.bind_input(self._binding, name)
        views["slots"].bind_input(self._binding, "slots")
        self._binding.bind_cpu_input("steps", np.array([steps], np.int64))
        for name in PARTS:
            views[name].bind_output(self._binding, name)
        self._bound = count, steps


def _power_of_two(number: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << (number - 1).bit_length()

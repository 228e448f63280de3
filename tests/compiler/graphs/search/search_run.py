"""Runs a search graph as a server does: outputs lie on the memory of the inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from hmc.compiler.graph import GraphBuilder
from hmc.compiler.serialize import in_memory
from hmc.engine.arrays import DTYPES
from hmc.engine.requests.results import DecodedHypothesis

Array = npt.NDArray[Any]


def open_session(graph: GraphBuilder, optimised: str | None = None) -> onnxruntime.InferenceSession:
    """optimised: where the graph is written as ONNX Runtime runs it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if optimised:
        options.optimized_model_filepath = optimised
    found = in_memory(graph.model({}))
    weights = {name: onnxruntime.OrtValue.ortvalue_from_numpy(w) for name, w in found.weights.items()}
    if weights:
        options.add_external_initializers(list(weights), list(weights.values()))
    return onnxruntime.InferenceSession(found.graph, options, providers=["CPUExecutionProvider"])


class SearchRun:
    """B slots of k rows, whose state is bound once."""

    def __init__(self, session: onnxruntime.InferenceSession, **sizes: int) -> None:
        """sizes: B, k, P, N, and whatever else the inputs have."""
        self.session, self.binding = session, session.io_binding()
        sizes = {"R": sizes["B"] * sizes["k"], **sizes}
        self.arrays: dict[str, Array] = {}
        for given in session.get_inputs():
            if given.name == "candidates":
                self.arrays[given.name] = np.array([sizes["K"]])
            elif given.name == "total_length":
                self.arrays[given.name] = np.array([sizes["T"]], np.int32)
            else:
                dtype = DTYPES.get(given.type, np.float64)
                self.arrays[given.name] = np.zeros([sizes.get(n, n) for n in given.shape], dtype)
        self.arrays["report"] = np.zeros(2, np.int32)
        self._values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(a) for name, a in self.arrays.items()}
        for given in session.get_inputs():
            self.binding.bind_ortvalue_input(given.name, self._values[given.name])
        for made in session.get_outputs():
            name = made.name.removeprefix("next_").replace("present_", "past_")
            self.binding.bind_ortvalue_output(made.name, self._values[name])

    def write(self, name: str, array: Array) -> None:
        """Writes an input."""
        self._values[name].update_inplace(np.ascontiguousarray(array.astype(self.arrays[name].dtype)))

    def read(self, name: str) -> Array:
        """An input as it is now: the state after the last step."""
        array: Array = self._values[name].numpy()
        return array

    def step(self) -> None:
        """Runs one step."""
        self.session.run_with_iobinding(self.binding)

    def ended(self, slot: int) -> list[DecodedHypothesis]:
        """The ended hypotheses of a slot, by following the parents back."""
        found = []
        for place, rank in enumerate(self.read("ended_ranks")[slot]):
            if rank == -np.inf:
                continue
            complete = bool(self.read("ended_complete")[slot, place])
            last = int(self.read("ended_lengths")[slot, place]) - complete
            row, ids, scores = int(self.read("ended_rows")[slot, place]), [], []
            for entry in range(last - 1, -1, -1):
                ids.append(int(self.read("history_tokens")[slot, entry, row]))
                scores.append(float(self.read("history_scores")[slot, entry, row]))
                row = int(self.read("history_parents")[slot, entry, row])
            final = [float(self.read("ended_finals")[slot, place])] if complete else []
            found.append(DecodedHypothesis(tuple(ids[::-1]), float(rank), complete, (*scores[::-1], *final)))
        return found

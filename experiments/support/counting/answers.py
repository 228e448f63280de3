"""Made-up answers: what the graphs would have written, so that searches go on and end as in a real service.

The stand-ins compute nothing, and their device memory is memory of the host. After each run of a decoder, plausible
candidates are written to the memory that its outputs are bound to. A sentence ends at a length that is drawn from
natural lengths, or at its limit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.support.counting.watching import Bound, Run
from hmc.artifact.model.architecture import Architecture
from hmc.engine.arrays import DTYPES, Ints

TYPES = DTYPES | {"tensor(double)": np.float64}
"""Element type, as ONNX Runtime names it → NumPy's."""
DRAWS = 16
"""Different answers of each shape; making new ones at every step would take longer than the step."""
ENDS, ENDED_LATER = -0.01, 8.0
"""Log-probability of an EOS that ends a sentence, and how much worse every other candidate then is."""


def array_at(bound: Bound, dtype: Any) -> npt.NDArray[Any]:
    """The memory of an input or output, as an array that can be read and written."""
    size = int(np.prod(bound.shape)) * np.dtype(dtype).itemsize
    memory = (ctypes.c_char * size).from_address(bound.address)
    return np.frombuffer(memory, dtype).reshape(bound.shape)


class Lengths:
    """When sentences end."""

    def __init__(self, natural: Sequence[int] | None) -> None:
        """natural: target lengths, EOS included; None: every sentence goes on to its limit."""
        self._hazard = np.zeros(1)
        """At t: how many of the sentences with at least t tokens end with token t."""
        if natural is not None:
            counts = np.bincount(natural).astype(np.float64)
            reached = counts[::-1].cumsum()[::-1]
            self._hazard = counts / reached
        self.ever = natural is not None

    def ends(self, lengths: Ints, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        """Whether each sentence ends with its next token. lengths `[N]`: tokens of each with that one."""
        return rng.random(len(lengths)) < self._hazard[np.minimum(lengths, len(self._hazard) - 1)]


class Answers:
    """A listener of `Watch.listeners` that answers runs of the decoders whose search is on the host."""

    def __init__(self, arch: Architecture, lengths: Lengths, seed: int = 3) -> None:
        self.arch, self.lengths = arch, lengths
        self._seed = seed
        self.restart()
        self._made: dict[tuple[str, tuple[int, ...]], list[npt.NDArray[Any]]] = {}

    def restart(self) -> None:
        """The next batch draws what the last one drew."""
        self.rng = np.random.default_rng(self._seed)

    def __call__(self, run: Run) -> None:
        """Writes the answer of this run."""
        if run.role != "step":
            return
        types = {o.name: TYPES[o.type] for o in run.session.outputs_meta}
        for name in run.outputs.keys() & {"scores", "ids", "sampled", "sampled_scores", "weights", "wanted_scores"}:
            array_at(run.outputs[name], types[name])[...] = self._draw(name, run.outputs[name].shape)
        if self.lengths.ever and "scores" in run.outputs:
            self._end(run)

    def _draw(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        made = self._made.setdefault((name, shape), [])
        if len(made) < DRAWS:
            made.append(self._make(name, shape))
            return made[-1]
        return made[int(self.rng.integers(DRAWS))]

    def _make(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        if name in ("ids", "sampled"):
            ids: npt.NDArray[Any] = self.rng.integers(3, self.arch.vocab_size, shape)
            return ids
        if name == "scores":  # best first
            return -np.sort(self.rng.exponential(1.5, shape), axis=1) - 0.05
        return self.rng.random(shape) * (1.0 if name == "weights" else -1.0)

    def _end(self, run: Run) -> None:
        """In rows of sentences that end now, EOS is the best candidate by far."""
        lengths = array_at(run.inputs["lengths"], np.int32)
        rows = run.inputs["node_bias"].shape[2] if "node_bias" in run.inputs else 1
        ending = self.lengths.ends(lengths[::rows].astype(np.int64) + 1, self.rng).repeat(rows)
        if ending.any():
            scores = array_at(run.outputs["scores"], np.float32)
            scores[ending] -= ENDED_LATER
            scores[ending, 0] = ENDS
            array_at(run.outputs["ids"], np.int64)[ending, 0] = self.arch.eos_id

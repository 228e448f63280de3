"""A decoder with the search inside, in NumPy: it reads and writes the memory that it is bound to, as a graph would, and
searches as `hmc.engine.decoding` does. Its next tokens depend on the source in its cross cache, and on the tokens that
a row sees in its own. So whatever the host mixes up changes what is found."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from hmc.artifact.element_types import ELEMENT_TYPES
from hmc.artifact.model.architecture import Architecture
from hmc.compiler.graphs.search.graphs import author_collect
from hmc.compiler.serialize import in_memory
from hmc.engine.arrays import NEG_INF, Arrays
from hmc.engine.decoding import beam
from hmc.engine.decoding.state import DecodeState, Rules
from hmc.engine.requests.results import DecodedHypothesis
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.encoder import DeviceEncoder
from hmc.engine.runtime.memory.account import DeviceMemory, LevelMemory
from hmc.engine.runtime.memory.mirrored import MirroredArrays
from hmc.serving import DecodeOptions

ARCH = Architecture(
    vocab_size=12, d_model=8, ffn_dim=8, encoder_layers=1, decoder_layers=1, heads=1, head_dim=2, max_positions=200,
    pad_id=0, eos_id=1, unk_id=2,
)  # fmt: skip
BROKEN = 11
"""A source that begins with this token gets NaN for its third token."""
MASKED = -1e4
TYPES = {each.number: each.host for each in ELEMENT_TYPES}
STATE = {
    "limits": ("int32", ["B"]), "minimums": ("int32", ["B"]), "penalties": ("double", ["B"]),
    "fresh": ("int32", ["B"]), "source_lengths": ("int32", ["B"]), "lengths": ("int32", ["B"]),
    "done": ("int32", ["B"]), "tokens": ("int32", ["B", "k"]), "totals": ("double", ["B", "k"]),
    "ended_ranks": ("double", ["B", "k"]), "ended_totals": ("double", ["B", "k"]),
    "ended_lengths": ("int32", ["B", "k"]), "ended_rows": ("int32", ["B", "k"]),
    "ended_complete": ("int32", ["B", "k"]), "ended_finals": ("float", ["B", "k"]),
    "history_tokens": ("int32", ["B", "P", "k"]), "history_parents": ("int32", ["B", "P", "k"]),
    "history_scores": ("float", ["B", "P", "k"]), "cross_key_0": ("float", ["B", 1, "S", 1]),
}  # fmt: skip


def log_probs(source: Sequence[int], written: Sequence[int]) -> npt.NDArray[np.float32]:
    """`[V]` for the token after `written`."""
    if source[0] == BROKEN and len(written) == 2:
        return np.full(ARCH.vocab_size, np.nan, np.float32)
    rng = np.random.default_rng([len(source), *source, 77, *written])
    logits = rng.normal(size=ARCH.vocab_size)
    logits[ARCH.eos_id] += 0.2 * (len(written) - len(source))
    found: npt.NDArray[np.float32] = (logits - np.log(np.exp(logits).sum())).astype(np.float32)
    return found


def best(rows: Sequence[npt.NDArray[np.float32]], count: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Scores and ids `[R, count]`, best first."""
    scores = np.stack(rows)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(scores, order, axis=1), order


def expected(source: Sequence[int], options: DecodeOptions, limit: int) -> tuple[DecodedHypothesis, ...]:
    """What the search on the host finds."""
    state = DecodeState(options.rows, ARCH.pad_id, ARCH.eos_id)
    state.add([Rules.from_options(options, limit)])
    while True:
        rows = [log_probs(source, state.row(0, row)) for row in range(options.rows)]
        if len(beam.advance(state, *best(rows, beam.candidates_needed(options.rows))).done):
            return tuple(state.finished[0][: options.n_best])


class Recorded(DecodeState):
    """The search of one slot for one step. Ended hypotheses have their index in `ended` in place of ids."""

    parents: npt.NDArray[np.int64]
    ended: list[tuple[float, float, int, int, int, float]]
    """Rank, total, length, row, whether complete, score of EOS."""

    def extend(self, parents: Any, tokens: Any, scores: Any) -> None:
        self.parents = parents[0]
        super().extend(parents, tokens, scores)

    def end(self, sentence: int, row: int, total: float, final: float | None) -> None:
        length = int(self.lengths[sentence])
        score = total / max(length, 1) ** self.rules[sentence].length_penalty
        self.ended.append((score, total, length, row, int(final is not None), final or 0.0))
        found = DecodedHypothesis((len(self.ended) - 1,), score, final is not None)
        self.finished[sentence] = sorted([*self.finished[sentence], found], key=lambda h: -h.score)[: self.beam]


def step(a: Arrays) -> None:
    """One step of all slots, in place."""
    size, k = a["tokens"].shape
    for slot in range(size):
        if a["fresh"][slot]:
            a["lengths"][slot] = a["done"][slot] = 0
            a["tokens"][slot], a["totals"][slot], a["totals"][slot, 0] = ARCH.pad_id, NEG_INF, 0.0
            a["ended_ranks"][slot] = NEG_INF
            if "node_bias" in a:
                a["node_bias"][slot] = MASKED
        if a["limits"][slot] == 0:
            a["done"][slot] = 1
        if not a["done"][slot]:
            _advance(a, slot, k)
    a["fresh"][:] = 0
    used = (a["node_bias"] == 0).any(axis=(1, 2)).sum(axis=1) if "node_bias" in a else a["lengths"]
    a["report"][:] = ((a["done"] == 0) & (a["limits"] > 0)).sum(), used.max()


def _advance(a: Arrays, slot: int, k: int) -> None:
    length = int(a["lengths"][slot])
    source = a["cross_key_0"][slot, 0, : a["source_lengths"][slot], 0].astype(int).tolist()
    state = Recorded(k, ARCH.pad_id, ARCH.eos_id)
    limit, minimum = int(a["limits"][slot]), int(a["minimums"][slot])
    state.add([Rules(limit, float(a["penalties"][slot]), minimum)])
    state.ended = []
    state.scores[0], state.lengths[0] = a["totals"][slot], length
    for j in np.flatnonzero(a["ended_ranks"][slot] > NEG_INF):
        names = ("ranks", "totals", "lengths", "rows", "complete", "finals")
        state.ended.append(tuple(a[f"ended_{name}"][slot, j].item() for name in names))
        state.finished[0].append(DecodedHypothesis((int(j),), state.ended[-1][0], complete=True))
    rows = [log_probs(source, _written(a, slot, row, length)) for row in range(k)]
    done = beam.advance(state, *best(rows, beam.candidates_needed(k))).done
    for place, hypothesis in enumerate(state.finished[0]):
        if math.isnan(hypothesis.score):
            a["done"][slot] = 2
            break
        found = state.ended[hypothesis.ids[0]]
        for name, value in zip(("ranks", "totals", "lengths", "rows", "complete", "finals"), found, strict=True):
            a[f"ended_{name}"][slot, place] = value
    a["done"][slot] = max(a["done"][slot], len(done))
    a["history_tokens"][slot, length], a["history_parents"][slot, length] = state.last[0], state.parents
    a["history_scores"][slot, length] = state.token_scores[0, :, length]
    a["totals"][slot], a["tokens"][slot], a["lengths"][slot] = state.scores[0], state.last[0], length + 1
    if "node_bias" in a:
        a["node_bias"][slot, 0] = a["node_bias"][slot, 0][state.parents]


def _written(a: Arrays, slot: int, row: int, length: int) -> list[int]:
    """Writes a row's last token into its cache, and returns the tokens that the row sees there."""
    last = (a["tokens"][slot, row], length)
    if "node_bias" not in a:
        held = a["past_key_0"][slot, 0]
        held[length] = last
        return [int(token) for token in held[1 : length + 1, 0]]
    if row == 0:  # the rows of a sentence get the lowest positions that none of them sees
        free = np.flatnonzero((a["node_bias"][slot, 0] != 0).all(axis=0))[: len(a["tokens"][slot])]
        a["node_bias"][slot, 0, np.arange(len(free)), free] = 0
        for each, place in enumerate(free):
            a["past_key_0"][slot, 0, place] = a["tokens"][slot, each], length
    seen = a["past_key_0"][slot, 0][a["node_bias"][slot, 0, row] == 0]
    return [int(token) for token, at in sorted(seen.tolist(), key=lambda node: node[1]) if at]


class ApartMirror(MirroredArrays):
    """On the host, but the mirror has memory of its own, as it has for a device that is not the CPU: what is not copied
    is not there."""

    def __init__(self, memory: LevelMemory, size: int, what: str) -> None:
        super().__init__(memory, size, what)
        self._mirror = np.zeros(self.size, np.uint8)
        self._pinned = self._mirror.ctypes.data

    def _copy(self, target: int, source: int, size: int, kind: int) -> None:
        ctypes.memmove(target, source, size)


class FakeBinding:
    """Takes addresses, as an ONNX Runtime binding does."""

    def __init__(self) -> None:
        self.arrays: Arrays = {}

    def bind_input(self, name: str, kind: str, index: int, element: int, shape: Sequence[int], address: int) -> None:
        self.arrays[name] = self._array(element, shape, address)

    def bind_output(self, name: str, kind: str, index: int, element: int, shape: Sequence[int], address: int) -> None:
        held = name.replace("present_", "past_").removeprefix("next_")
        array = self._array(element, shape, address)
        if held in self.arrays:  # outputs go where the inputs are
            assert array.ctypes.data == self.arrays[held].ctypes.data
        self.arrays[held] = array

    def bind_cpu_input(self, name: str, array: npt.NDArray[Any]) -> None:
        self.arrays[name] = array

    def synchronize_outputs(self) -> None:
        pass

    @staticmethod
    def _array(element: int, shape: Sequence[int], address: int) -> npt.NDArray[Any]:
        size = math.prod(shape) * np.dtype(TYPES[element]).itemsize
        held = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        array: npt.NDArray[Any] = held.view(TYPES[element]).reshape(shape)
        return array


class FakeStep:
    """The session of the graph."""

    def __init__(self, *, tree: bool) -> None:
        past = {"past_key_0": ("float", ["B", 1, "N", 2] if tree else ["R", 1, "T", 2])}
        bias = {"node_bias": ("float", ["B", 1, "k", "N"]), "candidates": ("int64", [1])}
        shapes = STATE | past | (bias if tree else {"total_length": ("int32", [1])})
        self.inputs = [SimpleNamespace(name=n, type=f"tensor({t})", shape=axes) for n, (t, axes) in shapes.items()]
        kept = [n for n in shapes if n not in ("limits", "minimums", "penalties", "source_lengths", "candidates")]
        names = [f"next_{n}" for n in kept if not n.startswith(("past", "cross", "total_length"))]
        self.outputs = [SimpleNamespace(name=name) for name in [*names, "present_key_0", "report"]]
        self.runs: list[int] = []
        """Slots of each step."""

    def get_inputs(self) -> list[Any]:
        return self.inputs

    def get_outputs(self) -> list[Any]:
        return self.outputs

    def io_binding(self) -> FakeBinding:
        return FakeBinding()

    def run_with_iobinding(self, binding: FakeBinding, options: object = None) -> None:
        self.runs.append(len(binding.arrays["tokens"]))
        step(binding.arrays)


class FakeEncoder:
    """The session of an encoder that writes the source's tokens into the cache."""

    def __init__(self) -> None:
        self.slots: list[list[int]] = []
        """Slots of each call."""

    def io_binding(self) -> FakeBinding:
        return FakeBinding()

    def run_with_iobinding(self, binding: FakeBinding) -> None:
        a = binding.arrays
        self.slots.append(a["slots"][:, 0].tolist())
        for slot, source, length in zip(a["slots"][:, 0], a["source"], a["source_lengths"], strict=True):
            a["cross_key_0"][slot], a["cross_key_0"][slot, 0, :length, 0] = 0, source[:length]


@dataclass
class FakeSessions:
    """What `Searches` needs of a level's sessions."""

    step: FakeStep
    arch: Architecture = ARCH
    device: Device = field(default_factory=lambda: Device("cpu"))

    @cached_property
    def memory(self) -> LevelMemory:
        return LevelMemory(DeviceMemory(self.device), "fake")

    @cached_property
    def device_encoder(self) -> DeviceEncoder:
        return DeviceEncoder(FakeEncoder(), self.device, ARCH.pad_id, ARCH.max_positions)

    def checkout_decoder(self, variant: object) -> FakeStep:
        return self.step

    def collector(self) -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(in_memory(author_collect().model({})).graph)

"""Static activation ranges for int8: run real sentences through the fp32 graphs and fit a scale per linear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from hmc.artifact.architecture import Architecture
from hmc.artifact.checkpoint import Tensors
from hmc.artifact.heads import HeadLayout
from hmc.compiler.attends import Visible
from hmc.compiler.graph import GraphBuilder
from hmc.compiler.linears import Array, FloatLinears
from hmc.compiler.ranges import ActivationRange
from hmc.compiler.runner import GraphRunner

SENTENCES_AT_ONCE = 16
KEPT_PER_CALL = 4096
"""Values sampled from one activation in one run; extremes are always kept."""
BINS = 16384
"""Of the histogram that a range is fitted to: 64 for each of the 256 values it will have."""

LEAST_SPAN = 1e-6
"""Of a range, however little an activation varies."""


@dataclass
class CalibrationLinears(FloatLinears):
    """fp32, with all that int8 quantises also a graph output `tap.NAME`, to learn ranges from: the input of every
    linear, and queries, keys and values as `ATTENTION.query`, `.key` and `.value`."""

    tapped: dict[str, str] = field(default_factory=dict)
    """Name → output name."""

    def linear(self, g: GraphBuilder, name: str, x: ir.Value, weight: Array, bias: Array | None) -> ir.Value:
        self._tap(g, name, x, weight.shape[1])
        return super().linear(g, name, x, weight, bias)

    def cached(self, g: GraphBuilder, attention: str, part: str, x: ir.Value) -> ir.Value:
        self._tap(g, f"{attention}.{part}", x, "HD")
        return x

    def attend(
        self, g: GraphBuilder, attention: str, query: ir.Value, key: ir.Value, value: ir.Value, visible: Visible
    ) -> tuple[ir.Value, ir.Value | None]:
        self._tap(g, f"{attention}.query", query, "HD")
        return super().attend(g, attention, query, key, value, visible)

    def _tap(self, g: GraphBuilder, name: str, x: ir.Value, width: int | str) -> None:
        g.output(g.op("Flatten", [x], axis=1), f"tap.{name}", self.dtype, ["N", width])
        self.tapped[name] = f"tap.{name}"


class _Samples:
    """A deterministic sample of every tapped activation."""

    def __init__(self) -> None:
        self.values: dict[str, list[npt.NDArray[np.float32]]] = {}

    def __call__(self, name: str, value: npt.NDArray[np.float32]) -> None:
        flat = value.reshape(-1)
        if not len(flat):
            return
        picked = flat[:: max(1, len(flat) // KEPT_PER_CALL)]
        self.values.setdefault(name.removeprefix("tap."), []).append(np.concatenate([picked, [flat.min(), flat.max()]]))


def fit_range(values: npt.NDArray[np.float32]) -> ActivationRange:
    """The clipped uint8 range with the least mean squared error on `values`, zero exactly representable."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    high = max(high, low + LEAST_SPAN)
    counts, edges = np.histogram(values, BINS, range=(low, high))  # with 0, so never too narrow to be divided
    values, counts = ((edges[:-1] + edges[1:]) / 2)[counts > 0], counts[counts > 0]
    best, least = ActivationRange(1.0, 0), np.inf
    for share in np.linspace(0.3, 1.0, 29):
        scale = max((high - low) * share, LEAST_SPAN) / 255
        zero = int(np.clip(np.round(-low * share / scale), 0, 255))
        restored = (np.clip(np.round(values / scale) + zero, 0, 255) - zero) * scale
        error = float(np.average((values - restored) ** 2, weights=counts))
        if error < least:
            best, least = ActivationRange(float(np.float32(scale)), zero), error
    return best


@dataclass(frozen=True)
class Calibration:
    """What was learnt from greedy translations of sentences in fp32."""

    ranges: dict[str, ActivationRange]
    """Name of a linear, or of `ATTENTION.query`, `.key`, `.value` → range."""
    runner: GraphRunner
    """The fp32 graphs."""
    pairs: tuple[tuple[Sequence[int], Sequence[int]], ...]
    """Sentences and their translations (ids with EOS)."""


def calibrate(
    arch: Architecture, layout: HeadLayout, tensors: Tensors, sentences: Sequence[Sequence[int]], max_length: int = 64
) -> Calibration:
    """Translates `sentences` (ids with EOS) and fits ranges to what is met on the way."""
    samples, pairs = _Samples(), []
    runner = GraphRunner.author(arch, layout, tensors, CalibrationLinears(), CalibrationLinears())
    ordered = sorted(sentences, key=len)
    for start in range(0, len(ordered), SENTENCES_AT_ONCE):
        batch = ordered[start : start + SENTENCES_AT_ONCE]
        limit = min(max_length, arch.max_positions - 1, 2 * len(batch[-1]) + 10)
        pairs += list(zip(batch, runner.greedy(batch, limit, samples), strict=True))
    ranges = {name: fit_range(np.concatenate(values)) for name, values in samples.values.items()}
    return Calibration(ranges, runner, tuple(pairs))

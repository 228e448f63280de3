"""Static activation ranges for int8: the fp32 graphs translate real sentences, and a range is fitted to each tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from hmc.artifact.model.layers import AttentionSpec
from hmc.compiler.checks.runner import GraphRunner, Ids, Tap, batches
from hmc.compiler.derived import Array, DerivedArrays
from hmc.compiler.graph import GraphBuilder
from hmc.compiler.precisions.attention import Visible
from hmc.compiler.precisions.linears import FloatLinears
from hmc.compiler.precisions.ranges import ActivationRange
from hmc.compiler.weights import SlimModel

SCORED = 64
"""Sentences, about, whose translations are also scored."""
MAX_LENGTH = 64
"""Tokens of the longest translation."""
KEPT_PER_CALL = 4096
"""Values of one tensor that are counted in each run, at least, beside the smallest and the largest."""
COUNTED_AT_ONCE = 16384
"""Values of one tensor that wait until they are counted together."""
BINS = 16384
"""Of the histogram that a range is fitted to: 64 for each of the 256 steps of the range."""

LEAST_SPAN = 1e-6
"""Smallest width of a range, for tensors that hardly vary."""


@dataclass
class CalibrationLinears(FloatLinears):
    """fp32, with a graph output `tap.NAME` for every tensor that int8 quantises.

    These are the input of every linear layer, under the layer's name, and the queries, keys and values of the decoder's
    attention, as `ATTENTION.query`, `.key` and `.value`.
    """

    tapped: dict[str, str] = field(default_factory=dict)
    """Name of a tensor → name of its graph output."""

    def linear(self, g: GraphBuilder, name: str, x: ir.Value, weight: Array, bias: Array | None) -> ir.Value:
        self._tap(g, name, x, weight.shape[1])
        return super().linear(g, name, x, weight, bias)

    def cached(self, g: GraphBuilder, attention: AttentionSpec, part: str, x: ir.Value) -> ir.Value:
        self._tap(g, f"{attention.name}.{part}", x, "HD")
        return x

    def attend(
        self,
        g: GraphBuilder,
        attention: AttentionSpec,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        visible: Visible,
    ) -> tuple[ir.Value, ir.Value | None]:
        self._tap(g, f"{attention.name}.query", query, "HD")
        return super().attend(g, attention, query, key, value, visible)

    def _tap(self, g: GraphBuilder, name: str, x: ir.Value, width: int | str) -> None:
        g.output(g.op("Flatten", [x], axis=1), f"tap.{name}", self.dtype, ["N", width])
        self.tapped[name] = f"tap.{name}"


class _Limits:
    """The smallest and the largest value of every tapped tensor."""

    def __init__(self) -> None:
        self.limits: dict[str, tuple[float, float]] = {}

    def __call__(self, name: str, value: npt.NDArray[np.float32]) -> None:
        if value.size:
            low, high = self.limits.get(name, (0.0, 0.0))  # a range includes 0, so that 0 is exact
            self.limits[name] = min(low, float(value.min())), max(high, float(value.max()))


class Histogram:
    """Counts of a tensor's values in BINS equal bins. Its memory does not depend on the number of values."""

    def __init__(self, low: float, high: float) -> None:
        """low, high: the smallest and the largest value that is counted."""
        self.low = min(low, 0.0)
        self.high = max(high, 0.0, min(low, 0.0) + LEAST_SPAN)
        self._counts = np.zeros(BINS, np.int64)
        self._waiting: list[npt.NDArray[np.float32]] = []

    def add(self, values: npt.NDArray[np.float32]) -> None:
        """Counts values `[N]`. They are kept until there are COUNTED_AT_ONCE: counting few values costs as much."""
        self._waiting.append(values)
        if sum(map(len, self._waiting)) >= COUNTED_AT_ONCE:
            self._count()

    def filled(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """The centres of the bins that hold a value, and how many values each holds."""
        self._count()
        edges = np.histogram_bin_edges(np.empty(0, np.float32), BINS, range=(self.low, self.high))
        filled = self._counts > 0
        return ((edges[:-1] + edges[1:]) / 2)[filled], self._counts[filled]

    def _count(self) -> None:
        if self._waiting:
            values = np.concatenate(self._waiting)
            self._counts += np.histogram(values, BINS, range=(self.low, self.high))[0]
            self._waiting = []


class _Histograms:
    """A histogram of every tapped tensor, of a deterministic sample of its values."""

    def __init__(self, limits: _Limits) -> None:
        self.histograms = {name: Histogram(low, high) for name, (low, high) in limits.limits.items()}

    def __call__(self, name: str, value: npt.NDArray[np.float32]) -> None:
        flat = value.reshape(-1)
        if len(flat):
            picked = flat[:: max(1, len(flat) // KEPT_PER_CALL)]
            self.histograms[name].add(np.concatenate([picked, [flat.min(), flat.max()]]))

    def ranges(self) -> dict[str, ActivationRange]:
        """The range of every tensor."""
        return {name.removeprefix("tap."): fit_range(histogram) for name, histogram in self.histograms.items()}


def fit_range(histogram: Histogram) -> ActivationRange:
    """The uint8 range, clipped or not, with the least mean squared error on the values. It represents 0 exactly."""
    low = histogram.low
    high = histogram.high
    values, counts = histogram.filled()
    best = ActivationRange(1.0, 0)
    least = np.inf
    for share in np.linspace(0.3, 1.0, 29):
        scale = max((high - low) * share, LEAST_SPAN) / 255
        zero = int(np.clip(np.round(-low * share / scale), 0, 255))
        restored = (np.clip(np.round(values / scale) + zero, 0, 255) - zero) * scale
        error = float(np.average((values - restored) ** 2, weights=counts))
        if error < least:
            best = ActivationRange(float(np.float32(scale)), zero)
            least = error
    return best


@dataclass(frozen=True)
class Calibration:
    """Ranges and scores from greedy fp32 translations of real sentences."""

    ranges: dict[str, ActivationRange]
    """Name of a linear layer, or of `ATTENTION.query`, `.key`, `.value` → range."""
    sources: Ids
    """A sample of the sentences (ids with EOS), from short to long."""
    targets: Ids
    """Their translations."""
    scores: npt.NDArray[np.float32]
    """The fp32 log-probability of every token of `targets`, in one row `[N]`."""


def calibrate(model: SlimModel, sentences: Ids, derived: DerivedArrays | None = None) -> Calibration:
    """Translates `sentences` (ids with EOS), and fits a range to every tensor that the graphs tap on the way.

    The sentences are translated twice: first to find the smallest and the largest value of every tensor, then to count
    its values between them. So memory does not grow with the number of sentences. About SCORED of the sentences,
    evenly spaced by length, are also scored in fp32, to compare int8 with.
    """
    linears = CalibrationLinears(derived=derived or DerivedArrays())
    runner = GraphRunner.author(model.arch, model.layout, model.tensors, linears)
    ordered = sorted(sentences, key=len)

    def translate(tap: Tap) -> Iterator[tuple[Sequence[int], list[int]]]:
        for batch in (ordered[part] for part in batches(ordered)):
            limit = min(MAX_LENGTH, model.arch.max_positions - 1, 2 * len(batch[-1]) + 10)
            yield from zip(batch, runner.greedy(batch, limit, tap), strict=True)

    limits = _Limits()
    pairs = list(translate(limits))
    histograms = _Histograms(limits)
    for _ in translate(histograms):
        pass
    sources, targets = zip(*pairs[:: max(1, len(pairs) // SCORED)], strict=True)
    scores = runner.target_scores(sources, targets)
    runner.close()
    return Calibration(histograms.ranges(), sources, targets, scores)

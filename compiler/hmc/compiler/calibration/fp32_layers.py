"""Which layers of an int8 level stay in fp32: those that would cost it quality in 8 bits, as measured (decision 21).

A layer here is a linear layer, or the queries, keys and values of an attention layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from hmc.artifact.rounding import ceil_div
from hmc.compiler.calibration.calibrate import Calibration, CalibrationLinears
from hmc.compiler.checks.runner import GraphRunner, batches
from hmc.compiler.derived import Array, DerivedArrays
from hmc.compiler.graph import GraphBuilder
from hmc.compiler.precisions.int8 import Int8Linears, quantize_columns
from hmc.compiler.precisions.ranges import ActivationRange
from hmc.compiler.weights import SlimModel

TOLERANCE = 0.05
"""Mean absolute change that is allowed to the log-probability of a token of the fp32 translations, nats. Models that
lose nothing in 8 bits have 0.01 to 0.04."""
ROWS = 256
SENTENCES = 16
STEPS = 64
"""Rows of a tensor that are kept to measure its rounding error. They are of so many sentences, and so many steps of
each, at most."""
PARTS = ("query", "key", "value")
Ranges = dict[str, ActivationRange]


@dataclass(frozen=True)
class Quantization:
    """How an int8 level is quantised."""

    ranges: Ranges
    """Of the tensors that are quantised."""
    fp32: tuple[str, ...]
    """Layers that stay in fp32, those with the largest rounding error first."""
    change: float
    """Mean absolute change of a token's log-probability against fp32, nats."""


def choose_fp32_layers(
    model: SlimModel, calibration: Calibration, derived: DerivedArrays | None = None
) -> Quantization:
    """Quantises every tensor that has a range, if that changes scores by TOLERANCE at most.

    Otherwise the layers with the largest rounding errors stay in fp32: as few as keep TOLERANCE, or all.
    """
    derived = derived or DerivedArrays()
    sources = calibration.sources
    targets = calibration.targets

    def change(ranges: Ranges) -> float:
        linears = Int8Linears(ranges, derived=derived)
        runner = GraphRunner.author(model.arch, model.layout, model.tensors, linears)
        difference = float(np.abs(runner.target_scores(sources, targets) - calibration.scores).mean())
        runner.close()
        return difference if np.isfinite(difference) else np.inf

    if (all_int8 := change(calibration.ranges)) <= TOLERANCE:
        return Quantization(calibration.ranges, (), all_int8)
    errors = _rounding_errors(model, calibration, derived)
    ranked = sorted(errors, key=lambda layer: (-errors[layer], layer))
    tried: dict[int, float] = {}

    def suffices(number: int) -> bool:
        tried[number] = change(without(calibration.ranges, ranked[:number]))
        return tried[number] <= TOLERANCE

    number = _fewest(len(ranked), suffices)
    if number not in tried:  # all of them, which the search takes for granted
        suffices(number)
    return Quantization(without(calibration.ranges, ranked[:number]), tuple(ranked[:number]), tried[number])


def _fewest(most: int, suffices: Callable[[int], bool]) -> int:
    """The least number from 1 on that suffices; `most` if none does. A number above one that suffices must too."""
    upper = 1
    while upper < most and not suffices(upper):
        upper *= 2
    lower = upper // 2
    upper = min(upper, most)
    while upper - lower > 1:
        middle = (upper + lower) // 2
        lower, upper = (lower, middle) if suffices(middle) else (middle, upper)
    return upper


def without(ranges: Ranges, layers: Sequence[str]) -> Ranges:
    """The ranges of the quantised layers, if `layers` stay in fp32."""
    return {n: r for n, r in ranges.items() if n not in layers and _attention(n) not in layers}


def _attention(name: str) -> str | None:
    """The attention layer that a range belongs to; None for the range of a linear layer."""
    layer, _, part = name.rpartition(".")
    return layer if part in PARTS else None


@dataclass
class _RowLinears(CalibrationLinears):
    """Also remembers the weights of all linear layers."""

    weights: dict[str, Array] = field(default_factory=dict)
    """Name of a linear layer → `[out, in]`."""

    def linear(self, g: GraphBuilder, name: str, x: ir.Value, weight: Array, bias: Array | None) -> ir.Value:
        self.weights[name] = weight
        return super().linear(g, name, x, weight, bias)


def _rounding_errors(model: SlimModel, calibration: Calibration, derived: DerivedArrays) -> dict[str, float]:
    """Layer → the rounding error of its result, as a share of the result's variance. Of the encoder's tensors, a batch
    gives rows once, of the decoder's at every step."""
    arch = model.arch
    ranges = calibration.ranges
    sources = calibration.sources[:: ceil_div(len(calibration.sources), SENTENCES)]
    slices = list(batches(sources))
    rows: dict[str, list[npt.NDArray[np.float32]]] = {}
    linears = _RowLinears(derived=derived)
    runner = GraphRunner.author(arch, model.layout, model.tensors, linears)
    for number, part in enumerate(slices, 1):
        sentences = part.stop - part.start
        quota = number * ROWS // len(slices)

        def tap(name: str, value: npt.NDArray[np.float32], sentences: int = sentences, quota: int = quota) -> None:
            kept = rows.setdefault(name.removeprefix("tap."), [])
            wanted = quota - sum(map(len, kept))
            of_decoder = len(value) <= sentences
            if of_decoder:
                wanted = min(wanted, max(1, ROWS // len(slices) // STEPS))
            if len(value) and wanted > 0:
                kept.append(value[:: ceil_div(len(value), wanted)])

        runner.greedy(sources[part], min(STEPS, arch.max_positions - 1), tap)
    runner.close()
    met = {name: np.concatenate(values) for name, values in rows.items()}
    errors = {
        name: _linear_error(met[name], linears.weights[name], ranges[name], derived)
        for name in met
        if name in linears.weights
    }
    for layer in {_attention(name) for name in met} - {None}:
        parts = {part: met[f"{layer}.{part}"].reshape(-1, arch.head_dim) for part in PARTS}
        errors[str(layer)] = _attention_error(parts, {part: ranges[f"{layer}.{part}"] for part in PARTS})
    return errors


def _linear_error(
    x: npt.NDArray[np.float32], weight: Array, input_range: ActivationRange, derived: DerivedArrays
) -> float:
    """x `[N, in]`, weight `[out, in]`."""
    integers, scales = derived.get(quantize_columns, weight)
    return _share_of_variance(input_range.rounded(x) @ (integers * scales), x @ weight.T.astype(np.float32))


def _attention_error(parts: dict[str, npt.NDArray[np.float32]], ranges: Ranges) -> float:
    """parts: queries, keys and values `[N, D]` of any heads. The larger error: that of q kᵀ, or that of the values."""
    query, key, value = (parts[part][:ROWS] for part in PARTS)
    rounded = {part: ranges[part].rounded(parts[part][:ROWS]) for part in PARTS}
    scores = _share_of_variance(rounded["query"] @ rounded["key"].T, query @ key.T)
    return max(scores, _share_of_variance(rounded["value"], value))


def _share_of_variance(rounded: npt.NDArray[np.float32], exact: npt.NDArray[np.float32]) -> float:
    return float(np.square(rounded - exact).mean() / max(float(exact.var()), 1e-12))

"""Which layers of an int8 level stay in fp32: those with which it would lose quality, found by measuring (decision 21).

A layer here is a linear, or what an attention keeps and multiplies (its queries, keys and values).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from hmc.artifact.architecture import Architecture
from hmc.artifact.checkpoint import Tensors
from hmc.artifact.heads import HeadLayout
from hmc.compiler.calibrate import Calibration, CalibrationLinears
from hmc.compiler.graph import GraphBuilder
from hmc.compiler.linears import Array, Int8Linears, quantize_columns
from hmc.compiler.ranges import ActivationRange
from hmc.compiler.runner import GraphRunner

TOLERANCE = 0.05
"""Nats by which the log-probability of a token of fp32's translations may change, on average. Models that take well to
8 bits have 0.01 to 0.04."""
SENTENCES = 64
ROWS, ROWS_PER_CALL = 256, 4
"""Of an activation, kept to see what rounding does to it."""
PARTS = ("query", "key", "value")
Ranges = dict[str, ActivationRange]


@dataclass(frozen=True)
class Quantization:
    """How an int8 level is quantised."""

    ranges: Ranges
    """Of what is."""
    fp32: tuple[str, ...]
    """Layers that are not, in the order in which they lose."""
    change: float
    """Mean absolute change of a token's log-probability, nats."""


def settle(arch: Architecture, layout: HeadLayout, tensors: Tensors, calibration: Calibration) -> Quantization:
    """Quantises all that has a range; where that changes scores by more than TOLERANCE, the fewest of the layers that
    lose most stay in fp32, so that it does not."""
    step = max(1, len(calibration.pairs) // SENTENCES)
    sources, targets = zip(*calibration.pairs[::step], strict=True)
    expected = calibration.runner.target_scores(sources, targets)

    def change(ranges: Ranges) -> float:
        runner = GraphRunner.author(arch, layout, tensors, Int8Linears(ranges))
        found = float(np.abs(runner.target_scores(sources, targets) - expected).mean())
        return found if np.isfinite(found) else np.inf

    if (all_int8 := change(calibration.ranges)) <= TOLERANCE:
        return Quantization(calibration.ranges, (), all_int8)
    errors = _errors(arch, layout, tensors, calibration.ranges, sources)
    ranked = sorted(errors, key=lambda layer: (-errors[layer], layer))
    tried: dict[int, float] = {}

    def keeps(number: int) -> bool:
        tried[number] = change(_without(calibration.ranges, ranked[:number]))
        return tried[number] <= TOLERANCE

    number = _fewest(len(ranked), keeps)
    if number not in tried:  # all of them: nothing less will do
        keeps(number)
    return Quantization(_without(calibration.ranges, ranked[:number]), tuple(ranked[:number]), tried[number])


def _fewest(most: int, keeps: Callable[[int], bool]) -> int:
    """The least number from 1 on that keeps, where more never keep less; `most` where none does."""
    upper = 1
    while upper < most and not keeps(upper):
        upper *= 2
    lower, upper = upper // 2, min(upper, most)
    while upper - lower > 1:
        middle = (upper + lower) // 2
        lower, upper = (lower, middle) if keeps(middle) else (middle, upper)
    return upper


def _without(ranges: Ranges, layers: Sequence[str]) -> Ranges:
    return {n: r for n, r in ranges.items() if n not in layers and _attention(n) not in layers}


def _attention(name: str) -> str | None:
    """The attention layer of which a range is; None for a linear's."""
    layer, _, part = name.rpartition(".")
    return layer if part in PARTS else None


@dataclass
class _RowLinears(CalibrationLinears):
    """Also keeps the weights it is given."""

    weights: dict[str, Array] = field(default_factory=dict)
    """Name of a linear → `[out, in]`."""

    def linear(self, g: GraphBuilder, name: str, x: ir.Value, weight: Array, bias: Array | None) -> ir.Value:
        self.weights[name] = weight
        return super().linear(g, name, x, weight, bias)


def _errors(
    arch: Architecture, layout: HeadLayout, tensors: Tensors, ranges: Ranges, sources: Sequence[Sequence[int]]
) -> dict[str, float]:
    """Layer → the share of its result's variance that rounding makes up."""
    rows: dict[str, list[npt.NDArray[np.float32]]] = {}

    def tap(name: str, value: npt.NDArray[np.float32]) -> None:
        kept = rows.setdefault(name.removeprefix("tap."), [])
        if len(value) and len(kept) < ROWS // ROWS_PER_CALL:
            kept.append(value[:: -(-len(value) // ROWS_PER_CALL)])

    linears = _RowLinears()
    runner = GraphRunner.author(arch, layout, tensors, linears)
    runner.greedy(sources, min(ROWS // ROWS_PER_CALL, arch.max_positions - 1), tap)
    met = {name: np.concatenate(values) for name, values in rows.items()}
    errors = {
        name: _of_linear(met[name], linears.weights[name], ranges[name]) for name in met if name in linears.weights
    }
    for layer in {_attention(name) for name in met} - {None}:
        parts = {part: met[f"{layer}.{part}"].reshape(-1, arch.head_dim) for part in PARTS}
        errors[str(layer)] = _of_attention(parts, {part: ranges[f"{layer}.{part}"] for part in PARTS})
    return errors


def _of_linear(x: npt.NDArray[np.float32], weight: Array, found: ActivationRange) -> float:
    """x `[N, in]`, weight `[out, in]`."""
    integers, scales = quantize_columns(weight)
    return _share(found.rounded(x) @ (integers * scales), x @ weight.T.astype(np.float32))


def _of_attention(parts: dict[str, npt.NDArray[np.float32]], ranges: Ranges) -> float:
    """parts `[N, D]`, of any heads: scores of each query for each key, and values."""
    query, key, value = (parts[part][:ROWS] for part in PARTS)
    rounded = {part: ranges[part].rounded(parts[part][:ROWS]) for part in PARTS}
    scores = _share(rounded["query"] @ rounded["key"].T, query @ key.T)
    return max(scores, _share(rounded["value"], value))


def _share(rounded: npt.NDArray[np.float32], exact: npt.NDArray[np.float32]) -> float:
    return float(np.square(rounded - exact).mean() / max(float(exact.var()), 1e-12))

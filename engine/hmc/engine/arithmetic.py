"""The arithmetic of step programs: what every executor of fp32 and int8 computes, to the bit.

fp32 sums run in one stated order. Exponentials, logarithms and erf are stated polynomials, because those of libraries
differ between machines. No product is fused with a sum. So nothing here calls NumPy's `@`, `sum`, `mean`, `exp` or
`log` on fp32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.artifact.program.operations import Range

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
LANES = 16
"""Partial sums that run side by side."""
AT_ONCE = 1 << 22
"""Numbers that a product holds at once: it bounds memory, and changes no sum."""
F = np.float32


def lane_sum(values: Float32) -> Float32:
    """The sum over the last axis, `[…, n]` → `[…]`.

    Lane i adds values i, i + 16, i + 32, … in order, beginning with 0. Then lanes i and i + 8 are added, i and i + 4,
    i and i + 2, i and i + 1.
    """
    lanes = np.zeros((*values.shape[:-1], LANES), F)
    for start in range(0, values.shape[-1], LANES):
        part = values[..., start : start + LANES]
        lanes[..., : part.shape[-1]] += part
    return _tree(lanes)


def _tree(lanes: Float32) -> Float32:
    """lanes `[…, 16]` → their sum `[…]`."""
    width = LANES // 2
    while width:
        lanes = lanes[..., :width] + lanes[..., width : 2 * width]
        width //= 2
    return lanes[..., 0]


def dot(rows: Float32, weight: Float32) -> Float32:
    """rows `[R, n]` times weight `[m, n]` → `[R, m]`, each a `lane_sum` of products."""
    result = np.empty((len(rows), len(weight)), F)
    columns = max(1, AT_ONCE // LANES)
    for row, values in enumerate(rows):
        for first in range(0, len(weight), columns):
            part = weight[first : first + columns]
            lanes = np.zeros((len(part), LANES), F)
            for start in range(0, len(values), LANES):
                stop = min(start + LANES, len(values))
                lanes[:, : stop - start] += part[:, start:stop] * values[start:stop]
            result[row, first : first + columns] = _tree(lanes)
    return result


def exact_dot(rows: Int32, weight: npt.NDArray[Any]) -> Int32:
    """rows `[R, n]` times weight `[n, m]`, both of integers of 8 bits → `[R, m]`, exact.

    Sums of 64-bit floats are exact here in any order: all of them are integers below 2⁵³.
    """
    product: Int32 = (rows.astype(np.float64) @ weight.astype(np.float64)).astype(np.int32)
    return product


def exp(x: Float32) -> Float32:
    """eˣ: 2ⁿ times the Taylor polynomial of degree 7 at x − n ln 2, n the integer next to x / ln 2.

    Below −87 it is 0, above 88 infinity. NaN stays NaN.
    """
    x = np.asarray(x, F)
    clipped = np.minimum(np.maximum(x, F(-87)), F(88))
    n = np.rint(clipped * F(1.4426950408889634))
    n = np.where(np.isnan(n), F(0), n)
    r = (clipped - n * F(0.693359375)) - n * F(-2.12194440e-4)
    power = np.full_like(r, F(1 / 5040))
    for coefficient in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
        power = power * r + F(coefficient)
    scale = ((n.astype(np.int32) + 127) << 23).view(F)
    result = np.where(x < F(-87), F(0), np.where(x > F(88), F(np.inf), power * scale))
    return np.where(np.isnan(x), F(np.nan), result).astype(F)


def log(x: Float32) -> Float32:
    """ln x of normal x > 0: e ln 2 + ln m, x = m 2ᵉ with m from √½ to √2, ln m = 2 artanh s, s = (m − 1) / (m + 1).

    The series of artanh is cut after s¹¹. Infinity and NaN stay; 0 gives −∞.
    """
    x = np.asarray(x, F)
    usual = np.isfinite(x) & (x > 0)
    m, e = np.frexp(np.where(usual, x, F(1)))
    small = m < F(0.70710678)
    m = np.where(small, m * F(2), m)
    exponent = (e - small).astype(F)
    s = (m - F(1)) / (m + F(1))
    z = s * s
    series = np.full_like(z, F(1 / 11))
    for coefficient in (1 / 9, 1 / 7, 1 / 5, 1 / 3):
        series = series * z + F(coefficient)
    logarithm = F(2) * (s + s * (z * series))
    result = exponent * F(0.693359375) + (exponent * F(-2.12194440e-4) + logarithm)
    other = np.where(x == 0, F(-np.inf), np.where(x > 0, x, F(np.nan)))
    return np.where(usual, result, other).astype(F)


NEAR_ZERO = (1.1283791, -0.37612626, 0.11283597, -0.026854329, 0.0051893122, -0.00080188550, 7.8824974e-05)
"""erf(x) / x for |x| up to 1 as a polynomial in x², lowest power first."""
FARTHER = (
    -0.00016045761, 0.28500554, 0.25910446, 0.34980762, -0.10769317, 0.56819123, -0.47445801, 0.12026211,
)  # fmt: skip
"""erfc(x) · exp(x²) for x from 1 to 4 as a polynomial in 1 / (1 + x / 2), lowest power first."""


def erf(x: Float32) -> Float32:
    """The error function, to 2⁻²² of its value: two polynomials, and ±1 beyond ±4."""
    x = np.asarray(x, F)
    size = np.minimum(np.abs(x), F(4))
    square = size * size
    near = x * _polynomial(NEAR_ZERO, np.minimum(square, F(1)))
    t = F(1) / (F(1) + size * F(0.5))
    far = F(1) - exp(-square) * _polynomial(FARTHER, t)
    far = np.where(np.abs(x) >= F(4), F(1), far)
    result = np.where(size <= F(1), near, np.copysign(far, x))
    return np.where(np.isnan(x), F(np.nan), result).astype(F)


def _polynomial(coefficients: tuple[float, ...], x: Float32) -> Float32:
    result = np.full_like(x, F(coefficients[-1]))
    for coefficient in coefficients[-2::-1]:
        result = result * x + F(coefficient)
    return result


def norm(x: Float32, weight: Float32, bias: Float32, epsilon: float) -> Float32:
    """Layer norm of `[…, d]`: (x − mean) / √(variance + ε) · weight + bias. The variance is taken in a second pass."""
    size = F(x.shape[-1])
    centred = x - (lane_sum(x) / size)[..., None]
    variance = lane_sum(centred * centred) / size
    deviation = np.sqrt(variance + F(epsilon))
    result: Float32 = centred / deviation[..., None] * weight + bias
    return result


def activate(x: Float32, name: str | None) -> Float32:
    """relu: max(x, 0); swish: x / (1 + exp(−x)); gelu: (x / 2) · (1 + erf(x / √2)). None: x."""
    if name is None:
        return x
    if name == "relu":
        return np.where(np.isnan(x), x, np.maximum(x, F(0)))
    if name == "swish":
        return x / (F(1) + exp(-x))
    assert name == "gelu"
    return (x * F(0.5)) * (F(1) + erf(x * F(0.70710678)))


def quantise(x: Float32, to: Range) -> Int32:
    """x / scale, clamped to what 8 bits hold, rounded half to even, plus the zero point. NaN becomes the zero point;
    the reader of the integers has to carry it on."""
    low, high = (-128, 127) if to.signed else (-to.zero_point, 255 - to.zero_point)
    steps = np.minimum(np.maximum(x / F(to.scale), F(low)), F(high))
    steps = np.where(np.isnan(steps), F(0), steps)
    return np.rint(steps).astype(np.int32) + np.int32(to.zero_point)


def softmax(scores: Float32) -> Float32:
    """exp(s − max) / sum over the last axis; −∞ gives 0."""
    highest = scores.max(axis=-1, keepdims=True)
    powers = exp(scores - highest)
    return powers / lane_sum(powers)[..., None]


def weighted_sum(weights: Float32, values: Float32) -> Float32:
    """weights `[…, n]` and values `[…, n, D]` → `[…, D]`: places are added in their order, beginning with 0."""
    total = np.zeros((*values.shape[:-2], values.shape[-1]), F)
    for place in range(values.shape[-2]):
        total = total + weights[..., place, None] * values[..., place, :]
    return total

"""Fitting a latency table to measured models: least squares over costs that cannot be negative."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import numpy as np
import numpy.typing as npt

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.ffn import STACKS
from hmc.artifact.model.heads import KINDS
from hmc.artifact.model.latency import Cost, LatencyTable, Observation, ServingSetting, Sizes, rounded_up
from hmc.artifact.model.layers import stack_of

STEPS = (1, 8, 16, 32, 64)
"""Multiples that numbers of neurons may be rounded up to."""
GAIN = 0.05
"""How much smaller a coarser step has to make the squared error, to be more than chance."""
PARTS = 1 + len(STACKS) + 2 * len(KINDS) + 2 * len(STACKS)
"""Costs that are fitted."""
Floats = npt.NDArray[np.float64]


def fit_table(
    observations: Sequence[Observation], architecture: Architecture, setting: ServingSetting, checkpoint: str = ""
) -> LatencyTable:
    """Fits the costs to the observations that are not held out, and finds the errors on those that are.

    Errors are relative ones, so that small models count as much as large ones. checkpoint: digest of the model that the
    observed ones were cut from. Raises InvalidRequestError when there are fewer observations than costs.
    """
    fitted = [o for o in observations if not o.held_out]
    if len(fitted) < PARTS:
        raise InvalidRequestError(f"a latency table has {PARTS} costs: measure more than {len(fitted)} models for it")
    best, costs, step = np.inf, np.zeros(PARTS), 1
    for candidate in STEPS:
        if candidate > architecture.ffn_dim:
            break
        found, error = _fit(fitted, candidate)
        if error < best * (1 - GAIN):
            best, costs, step = error, found, candidate
    fixed, *rest = (float(cost) for cost in costs)
    layers = dict(zip(STACKS, rest, strict=False))
    parts = iter(rest[len(STACKS) :])
    heads = {kind: Cost(open_ms=next(parts), each_ms=next(parts)) for kind in KINDS}
    neurons = {stack: Cost(open_ms=next(parts), each_ms=next(parts), step=step) for stack in STACKS}
    table = LatencyTable(
        setting=setting,
        architecture=architecture,
        checkpoint=checkpoint,
        fixed_ms=fixed,
        layers=layers,
        heads=heads,
        neurons=neurons,
        observations=tuple(observations),
    )
    errors = [abs(table.ms(o.sizes) / o.ms - 1) for o in observations if o.held_out]
    return table.model_copy(
        update={"worst_error": max(errors, default=0.0), "mean_error": mean(errors) if errors else 0.0}
    )


def features(sizes: Sizes, step: int) -> Floats:
    """How often a model has each cost `[PARTS]`: fixed, layers by stack, heads by kind, neurons by stack."""
    found: list[float] = [1.0, *(len(sizes.layers(stack)) for stack in STACKS)]
    for kind in KINDS:
        numbers = [sizes.heads[kind][layer] for layer in sizes.layers(stack_of(kind))]
        found += [sum(n > 0 for n in numbers), sum(numbers)]
    for stack in STACKS:
        numbers = [sizes.neurons[stack][layer] for layer in sizes.layers(stack)]
        found += [sum(n > 0 for n in numbers), sum(rounded_up(n, step) for n in numbers)]
    return np.array(found)


def _fit(observations: Sequence[Observation], step: int) -> tuple[Floats, float]:
    """Costs `[PARTS]` in ms, and the mean squared relative error."""
    rows = np.stack([features(o.sizes, step) / o.ms for o in observations])
    scale = np.maximum(rows.max(0), 1e-12)  # columns of one size keep the solution exact
    costs = non_negative_least_squares(rows / scale, np.ones(len(rows))) / scale
    return costs, float(np.mean((rows @ costs - 1) ** 2))


def non_negative_least_squares(rows: Floats, wanted: Floats) -> Floats:
    """The x ≥ 0 that minimises ‖rows · x - wanted‖² (Lawson & Hanson 1974, chapter 23). rows `[M, N]`, wanted `[M]`."""
    count = rows.shape[1]
    x, free = np.zeros(count), np.zeros(count, bool)
    tolerance = 1e-10 * float(np.abs(rows).sum())
    for _ in range(30 * count):
        gradient = rows.T @ (wanted - rows @ x)
        if free.all() or gradient[~free].max() <= tolerance:
            break
        free[int(np.argmax(np.where(free, -np.inf, gradient)))] = True
        while True:
            trial = np.zeros(count)
            trial[free] = np.linalg.lstsq(rows[:, free], wanted, rcond=None)[0]
            if not free.any() or trial[free].min() > 0:
                break
            negative = free & (trial <= 0)
            shares = x[negative] / np.maximum(x[negative] - trial[negative], 1e-300)
            x = x + float(shares.min()) * (trial - x)
            free &= x > 1e-12
            x[~free] = 0.0
        x = trial
    return x

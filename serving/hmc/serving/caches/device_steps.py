"""Decoder steps on a device, for searches on the host: inputs in one copy, a captured graph, outputs in one copy."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from hmc.artifact.bundle.manifest import Variant
from hmc.serving.arrays import Arrays
from hmc.serving.caches.geometry import Chain, Geometry
from hmc.serving.caches.pools import Pools
from hmc.serving.decoding import beam, sampling
from hmc.serving.requests.options import Sampling
from hmc.serving.runtime.bound_steps import BoundStep, BoundSteps
from hmc.serving.runtime.memory.mirrored import Arrangement, MirroredArrays, arrangement_bytes

ON_HOST = ("candidates", "total_length")
"""Inputs that operators read on the host."""
USUAL_BANNED = 16
"""Columns of `banned` without bans."""
UNUSUAL = "bans, or truncated sampling, ask for another number of candidates than the captured graphs return"


class DeviceSteps:
    """The steps of one mode's caches."""

    def __init__(self, session: Any, variant: Variant | None, chain: Chain, pools: Pools, vocab_size: int) -> None:
        self.pools, self.memory = pools, pools.memory
        self.inputs = {i.name: i for i in session.get_inputs() if i.name not in pools.caches and i.name not in ON_HOST}
        self.host_inputs = {i.name: i for i in session.get_inputs() if i.name in ON_HOST}
        outputs = {o.name: o for o in session.get_outputs() if not o.name.startswith("present_")}
        self.outputs: dict[str, tuple[str | int, ...]] = {name: tuple(o.shape) for name, o in outputs.items()}
        """Name → axes, of the outputs that are no caches."""
        self._types = {name: each.type for name, each in (self.inputs | outputs).items()}
        drawn = sampling.candidates_needed(Sampling()) + 2  # pad and EOS
        needed = drawn if variant == "sampling" else beam.candidates_needed(chain.rows)
        self.usual = min(needed, vocab_size)
        """K of steps without bans."""
        self.steps = BoundSteps(session, self.memory.device)
        largest = [(g, g.slots) for g in chain]
        self._in = self._make(max(arrangement_bytes(self._inputs_of(*each, {})) for each in largest))
        self._out = self._make(max(arrangement_bytes(self._outputs_of(*each, self.usual)) for each in largest))
        self._arranged: Hashable = None
        """The key for which `_in` and `_out` are arranged."""

    def run(self, geometry: Geometry, size: int, candidates: int, inputs: Arrays) -> Arrays:
        """Runs `size` slots. candidates: K. inputs: by slot or row; those that the graph does not have are left out.

        Returns the outputs by slot or row, valid until the next step.
        """
        widths = {"banned": _power_of_two(inputs["banned"].shape[1])} if "banned" in inputs else {}
        step, (into, out) = self._step(geometry, size, candidates, widths)
        for name, held in into.host.items():
            value = inputs[name]
            if value.ndim == 2 and value.shape[1] < held.shape[1]:  # a token may be named again
                held[:, : value.shape[1]] = value
                held[:, value.shape[1] :] = value[:, :1]
            else:
                held[...] = value
        into.write()
        step.run(wait=True)
        out.read()
        return out.host

    def warm_up(self, geometry: Geometry, size: int) -> None:
        """Captures the usual step of this size."""
        step, (into, _) = self._step(geometry, size, self.usual, {})
        for name, held in into.host.items():
            held[...] = name == "source_lengths"
        into.write()
        step.run(wait=True)

    def close(self) -> None:
        """Gives up the session and all memory."""
        del self.steps, self._in, self._out

    def _step(
        self, geometry: Geometry, size: int, candidates: int, widths: dict[str, int]
    ) -> tuple[BoundStep, tuple[MirroredArrays, MirroredArrays]]:
        """The binding of a step, and its inputs and outputs. Usual steps share memory for these."""
        usual = candidates == self.usual and widths.get("banned", USUAL_BANNED) == USUAL_BANNED
        key = (geometry, size, candidates, *widths.values())

        def bind(step: BoundStep) -> None:
            arrangements = self._inputs_of(geometry, size, widths), self._outputs_of(geometry, size, candidates)
            held = self._in, self._out
            if not usual:
                held = self._make(arrangement_bytes(arrangements[0])), self._make(arrangement_bytes(arrangements[1]))
            into, out = (arrays.arrange(each) for arrays, each in zip(held, arrangements, strict=True))
            for name, view in into.items():
                view.bind_input(step.binding, name)
            for name, view in out.items():
                view.bind_output(step.binding, name)
            self._bind_caches(step, geometry, size)
            on_host = {"candidates": np.array([candidates]), "total_length": np.array([geometry.target], np.int32)}
            for name in self.host_inputs:
                step.binding.bind_cpu_input(name, on_host[name])
            step.held = [*held, on_host]

        if key != self._arranged and usual:
            self._in.arrange(self._inputs_of(geometry, size, widths))
            self._out.arrange(self._outputs_of(geometry, size, candidates))
            self._arranged = key
        step = self.steps.step(key, bind, "" if usual else UNUSUAL)
        return step, (step.held[0], step.held[1])

    def _bind_caches(self, step: BoundStep, geometry: Geometry, size: int) -> None:
        for name, view in self.pools.views(geometry).items():
            part = view.slots(size)  # caches have one row for each slot, or one tree
            part.bind_input(step.binding, name)
            if name.startswith("past_"):
                part.bind_output(step.binding, name.replace("past_", "present_"))

    def _inputs_of(self, geometry: Geometry, size: int, widths: dict[str, int]) -> Arrangement:
        named = {"penalised": geometry.target, "banned": USUAL_BANNED} | widths
        return {
            name: (i.type, (size * geometry.rows, named[name]) if name in named else _sizes(i.shape, geometry, size))
            for name, i in self.inputs.items()
        }

    def _outputs_of(self, geometry: Geometry, size: int, candidates: int) -> Arrangement:
        return {
            name: (self._types[name], _sizes([candidates if axis == "K" else axis for axis in axes], geometry, size))
            for name, axes in self.outputs.items()
        }

    def _make(self, size: int) -> MirroredArrays:
        return MirroredArrays(self.memory, size, "inputs and outputs of steps")


def _sizes(axes: Any, geometry: Geometry, size: int) -> tuple[int, ...]:
    return tuple(geometry.size_of(axis, size) for axis in axes)


def _power_of_two(width: int) -> int:
    return max(1 << (width - 1).bit_length(), USUAL_BANNED)

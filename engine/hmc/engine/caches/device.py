"""Decoder caches in the memory of a device, for searches on the host.

A sentence keeps one slot, its index in every cache, from its first step to its last. The encoder writes into slots, and
steps write in place. The caches have one of a few geometries (`Chain`). For each of them and each size, which is the
number of slots that a step runs, there is one binding and one captured graph: the inputs of a step are written to
memory of fixed addresses in one copy, the graph is replayed, and the outputs are read in one copy. A step runs slots
that no sentence uses, too: a device computes a few more rows in the same time.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import count
from typing import Any

import numpy as np

from hmc.artifact.bundle.manifest import Variant
from hmc.engine.arrays import Arrays, Ints
from hmc.engine.caches.geometry import Chain, Geometry
from hmc.engine.caches.interface import Caches
from hmc.engine.caches.pools import ON_HOST, CacheShape, Pools
from hmc.engine.caches.positions import Positions
from hmc.engine.decoding import beam, sampling
from hmc.engine.requests.options import Sampling
from hmc.engine.runtime import capture_lock
from hmc.engine.runtime.bound_steps import BoundStep, BoundSteps
from hmc.engine.runtime.memory.mirrored import Arrangement, MirroredArrays, arrangement_bytes
from hmc.engine.runtime.sessions import DeviceSessions

USUAL_BANNED = 16
"""Columns of `banned` without bans."""
UNUSUAL = "bans, or truncated sampling, ask for another number of candidates than the captured graphs return"


class DeviceCaches(Caches):
    """Sentence i is in slot `slots[i]` of every cache."""

    def __init__(self, sessions: DeviceSessions, variant: Variant | None, chain: Chain, positions: Positions) -> None:
        """Takes a decoder session for itself, and opens it if none is open. Raises InvalidArtifactError."""
        self.sessions = sessions
        self.variant = variant
        self.chain = chain
        self.positions = positions
        self.device = sessions.device
        self.rows = chain.rows
        session = sessions.checkout_decoder(variant)
        caches = {}
        for graph_input in session.get_inputs():
            if graph_input.name.startswith(("past_", "cross_")):
                caches[graph_input.name] = CacheShape(graph_input.type, tuple(graph_input.shape))
        self.self_attention = any(name.startswith("past_") for name in caches)
        self.pools = Pools(caches, sessions.memory)
        self.steps = DeviceSteps(session, variant, chain, self.pools, sessions.arch.vocab_size)
        self.encoder = sessions.device_encoder
        self.geometry: Geometry | None = None
        """None until the first sentence."""
        self.slots: Ints = np.zeros(0, np.int64)
        self.size = 0
        """Slots that a step runs."""
        self.source_lengths = np.ones(chain.slots(0), np.int32)
        self._last_step: Arrays = {}

    def groups(self, lengths: Sequence[int]) -> list[list[int]]:
        """All sentences together: `DeviceEncoder` divides them."""
        return [list(range(len(lengths)))]

    def add(
        self,
        sources: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]],  # noqa: ARG002 - shortlists need them
        limits: Sequence[int] = (),
    ) -> None:
        """See `Caches`. The sentences take the lowest free slots. Raises ValueError if there are too few."""
        lengths = np.array([len(s) for s in sources], np.int32)
        if not len(self.slots):  # rooms that only earlier sentences needed would slow every step down
            self.geometry = None
        with capture_lock.shared(self.device):
            bucket = self.chain.bucket_for(int(lengths.max()), max(limits, default=1))
            self._grow_to(self.chain.geometry(max(bucket, self._bucket), self.geometry))
            taken = self._free_slots(len(sources))
            self.encoder.encode(sources, taken, self.pools.views(self._present), self._present.source)
        self.source_lengths[taken] = lengths
        self.slots = np.concatenate([self.slots, np.array(taken, np.int64)])
        self.positions.add(len(sources))
        self._map_rows()

    def keep(self, order: Sequence[int]) -> None:
        """See `Caches`. The slots of dropped sentences become free."""
        self.slots = self.slots[np.asarray(order, np.int64)]
        self.positions.keep(order)
        self._map_rows()

    def clean(self, sentences: Sequence[int]) -> None:
        with capture_lock.shared(self.device):
            self.pools.clean(self._present, self.slots[np.asarray(sentences, np.int64)].tolist())

    def reorder(self, parents: Ints) -> None:
        self.positions.reorder(parents)

    def run(self, step: Arrays) -> Arrays:
        self._last_step = step
        with capture_lock.shared(self.device):
            outputs = self._run(dict(step))
        unread = () if "wanted" in step else ("wanted_scores",)
        by_slot = {name for name, axes in self.steps.outputs.items() if axes[0] == "B"}
        used = {name: self.slots if name in by_slot else self._row_out for name in outputs if name not in unread}
        return {name: outputs[name][places] for name, places in used.items()}

    def _run(self, step: Arrays) -> Arrays:
        candidates = int(step.pop("candidates")[0])
        step.setdefault("wanted", np.zeros(len(self.slots) * self.rows, np.int64))
        inputs = {name: value[self._row_in] for name, value in step.items()}
        inputs["source_lengths"] = self.source_lengths[: self.size]
        if self.self_attention:
            needed = self.positions.needed(step)
            if needed > self.positions.capacity:
                self._grow_to(self._with_room(needed))
                inputs["source_lengths"] = self.source_lengths[: self.size]
                inputs |= {name: value[self._row_in] for name, value in step.items()}
            inputs |= self.positions.next_inputs(step, self.slots, self.size)
        return self.steps.run(self._present, self.size, candidates, inputs)

    @property
    def steps_ahead(self) -> int:
        return self.positions.steps_ahead

    def run_next(self, tokens: Ints) -> Arrays:
        last = self._last_step
        return self.run({**last, "tokens": tokens.astype(np.int32), "lengths": last["lengths"] + 1})

    def warm_up(self) -> None:
        """See `Caches`: runs a step of every geometry and size, and the encoder on every shape."""
        assert not len(self.slots)
        with capture_lock.shared(self.device):
            self.pools.take_all(self.chain)
            for geometry in reversed(list(self.chain)):  # so that memory is not taken piece by piece
                self.encoder.warm_up(self.pools.views(geometry), geometry.slots, geometry.source)
                for size in geometry.sizes():
                    self.steps.warm_up(geometry, size)

    def close(self) -> None:
        """See `Caches`. The session is closed too, with the graphs captured in it. Meanwhile a new session is
        opened."""
        self.pools.close()
        self.steps.close()
        self.sessions.prefetch_decoder(self.variant)

    # -- slots and memory ------------------------------------------------------------------------------------------

    @property
    def _present(self) -> Geometry:
        assert self.geometry is not None
        return self.geometry

    @property
    def _bucket(self) -> int:
        return 0 if self.geometry is None else self.geometry.bucket

    def _free_slots(self, wanted: int) -> list[int]:
        """The lowest free slots, ascending."""
        used = set(self.slots.tolist())
        free = (slot for slot in count() if slot not in used)
        taken = [next(free) for _ in range(wanted)]
        if taken[-1] >= self._present.slots:
            raise ValueError(f"{len(used) + wanted} sentences do not fit into {self._present.slots} slots")
        return taken

    def _map_rows(self) -> None:
        """Sets the size of a step, and maps rows of the graph to rows of the batch and back: `_row_in` `[size · k]` and
        `_row_out` `[N · k]`. Rows of unused slots get the inputs of sentence 0."""
        if not len(self.slots):
            return
        self.size = self._present.size_for(int(self.slots.max()) + 1)
        row = np.arange(self.rows)
        self._row_out: Ints = (self.slots[:, None] * self.rows + row).reshape(-1)
        sentence = np.zeros(self.size, np.int64)
        sentence[self.slots] = np.arange(len(self.slots))
        self._row_in: Ints = (sentence[:, None] * self.rows + row).reshape(-1)

    def _with_room(self, needed: int) -> Geometry:
        """The geometry to which the present one grows for so many target positions or nodes."""
        present = self._present
        if self.positions.axis == "N":
            return self.chain.geometry(present.bucket, present, needed)
        return self.chain.geometry(self.chain.bucket_for(present.source, needed), present)

    def _grow_to(self, geometry: Geometry) -> None:
        """Gives the caches this geometry. What sentences have written moves on the device."""
        if self.geometry is None:
            self.positions.reset()
            self.source_lengths[:] = 1
            self.geometry = geometry
        for stop in self.chain.path(self._present, geometry):
            moved = self._slots_below(stop.slots)
            self.pools.move(self._present, stop, moved)
            self.geometry = stop
            for old, new in moved:
                self.source_lengths[new] = self.source_lengths[old]
                self.source_lengths[old] = 1
        self.positions.resize(geometry.size_of(self.positions.axis, geometry.slots))
        self._map_rows()

    def _slots_below(self, slots: int) -> list[tuple[int, int]]:
        """Moves sentences to free slots until all slots are below `slots`. Returns (old, new) slots."""
        free = (slot for slot in count() if slot not in set(self.slots.tolist()))
        moved = []
        for sentence in np.flatnonzero(self.slots >= slots):
            moved.append((int(self.slots[sentence]), next(free)))
            self.slots[sentence] = moved[-1][1]
        if len(self.slots) > slots:
            raise ValueError(f"{len(self.slots)} sentences do not fit into {slots} slots")
        return moved


class DeviceSteps:
    """The steps of one mode's caches."""

    def __init__(self, session: Any, variant: Variant | None, chain: Chain, pools: Pools, vocab_size: int) -> None:
        self.pools = pools
        self.memory = pools.memory
        self.inputs = {i.name: i for i in session.get_inputs() if i.name not in pools.caches and i.name not in ON_HOST}
        self.host_inputs = {i.name: i for i in session.get_inputs() if i.name in ON_HOST}
        outputs = {o.name: o for o in session.get_outputs() if not o.name.startswith("present_")}
        self.outputs: dict[str, tuple[str | int, ...]] = {name: tuple(o.shape) for name, o in outputs.items()}
        """Name → axes, of the outputs that are no caches."""
        self._types = {name: value.type for name, value in (self.inputs | outputs).items()}
        drawn = sampling.candidates_needed(Sampling()) + 2  # pad and EOS
        needed = drawn if variant == "sampling" else beam.candidates_needed(chain.rows)
        self.usual = min(needed, vocab_size)
        """K of steps without bans."""
        self.steps = BoundSteps(session, self.memory.device)
        self._in = self._make(max(arrangement_bytes(self._input_arrangement(g, g.slots, {})) for g in chain))
        self._out = self._make(max(arrangement_bytes(self._output_arrangement(g, g.slots, self.usual)) for g in chain))
        self._arranged: Hashable = None
        """The key for which `_in` and `_out` are arranged."""

    def run(self, geometry: Geometry, size: int, candidates: int, inputs: Arrays) -> Arrays:
        """Runs `size` slots. candidates: K. inputs: by slot or row; inputs that the graph does not have are left out.

        Returns the outputs by slot or row, valid until the next step.
        """
        widths = {"banned": _power_of_two(inputs["banned"].shape[1])} if "banned" in inputs else {}
        step, (into, out) = self._step(geometry, size, candidates, widths)
        for name, array in into.host.items():
            value = inputs[name]
            if value.ndim == 2 and value.shape[1] < array.shape[1]:  # a token may be named again
                array[:, : value.shape[1]] = value
                array[:, value.shape[1] :] = value[:, :1]
            else:
                array[...] = value
        into.write()
        step.run(wait=True)
        out.read()
        return out.host

    def warm_up(self, geometry: Geometry, size: int) -> None:
        """Captures the usual step of this size."""
        step, (into, _) = self._step(geometry, size, self.usual, {})
        for name, array in into.host.items():
            array[...] = name == "source_lengths"
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
            inputs = self._input_arrangement(geometry, size, widths)
            outputs = self._output_arrangement(geometry, size, candidates)
            into = self._in if usual else self._make(arrangement_bytes(inputs))
            out = self._out if usual else self._make(arrangement_bytes(outputs))
            for name, view in into.arrange(inputs).items():
                view.bind_input(step.binding, name)
            for name, view in out.arrange(outputs).items():
                view.bind_output(step.binding, name)
            self._bind_caches(step, geometry, size)
            on_host = {"candidates": np.array([candidates]), "total_length": np.array([geometry.target], np.int32)}
            for name in self.host_inputs:
                step.binding.bind_cpu_input(name, on_host[name])
            step.bound_arrays = [into, out, on_host]

        if key != self._arranged and usual:
            self._in.arrange(self._input_arrangement(geometry, size, widths))
            self._out.arrange(self._output_arrangement(geometry, size, candidates))
            self._arranged = key
        step = self.steps.step(key, bind, "" if usual else UNUSUAL)
        return step, (step.bound_arrays[0], step.bound_arrays[1])

    def _bind_caches(self, step: BoundStep, geometry: Geometry, size: int) -> None:
        for name, view in self.pools.views(geometry).items():
            part = view.slots(size)  # caches have one row for each slot, or one tree
            part.bind_input(step.binding, name)
            if name.startswith("past_"):
                part.bind_output(step.binding, name.replace("past_", "present_"))

    def _input_arrangement(self, geometry: Geometry, size: int, widths: dict[str, int]) -> Arrangement:
        named = {"penalised": geometry.target, "banned": USUAL_BANNED} | widths
        arrangement: dict[str, tuple[str, Sequence[int]]] = {}
        for name, value in self.inputs.items():
            if name in named:
                shape: Sequence[int] = (size * geometry.rows, named[name])
            else:
                shape = _sizes(value.shape, geometry, size)
            arrangement[name] = value.type, shape
        return arrangement

    def _output_arrangement(self, geometry: Geometry, size: int, candidates: int) -> Arrangement:
        arrangement: dict[str, tuple[str, Sequence[int]]] = {}
        for name, axes in self.outputs.items():
            known = (*axes[:-1], candidates) if "K" in axes else axes
            arrangement[name] = self._types[name], _sizes(known, geometry, size)
        return arrangement

    def _make(self, size: int) -> MirroredArrays:
        return MirroredArrays(self.memory, size, "inputs and outputs of steps")


def _sizes(axes: Any, geometry: Geometry, size: int) -> tuple[int, ...]:
    return tuple(geometry.size_of(axis, size) for axis in axes)


def _power_of_two(width: int) -> int:
    return max(1 << (width - 1).bit_length(), USUAL_BANNED)

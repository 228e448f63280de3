"""Searches that run in the graph: their state in the memory of a device, and what the host writes and reads of it.

Slot i of every array belongs to one sentence from its first step to its last. The caches and `node_bias` grow with the
geometry (`Pools`). All other arrays keep their addresses for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.artifact.bundle.manifest import SearchVariant
from hmc.artifact.rounding import round_up
from hmc.engine.caches.collector import Collector
from hmc.engine.caches.geometry import Chain, Geometry
from hmc.engine.caches.interface import UNLIMITED_STEPS
from hmc.engine.caches.pools import MASKED, ON_HOST, CacheShape, Pools
from hmc.engine.decoding.beam import candidates_needed
from hmc.engine.decoding.history import Ended, Int32s
from hmc.engine.decoding.state import Rules
from hmc.engine.runtime.bound_steps import BoundStep, BoundSteps
from hmc.engine.runtime.memory.account import LevelMemory
from hmc.engine.runtime.memory.blocks import ALIGNMENT, DeviceBlock
from hmc.engine.runtime.memory.mirrored import MirroredArrays, arrangement_bytes
from hmc.engine.runtime.memory.views import DeviceArray
from hmc.engine.runtime.sessions import DeviceSessions
from hmc.engine.runtime.staging import NewSentence, Staging, Upcoming

WRITTEN = ("limits", "minimums", "penalties", "fresh", "source_lengths")
"""Inputs that the host writes, for all slots together, when sentences join or are cancelled."""
READ = ("done", "lengths")
"""Inputs that the host reads. It also reads the output `report`."""
GROWING_INPUTS = ("past_", "cross_", "node_bias")
"""How the names of inputs begin whose sizes depend on the geometry."""
FIRST_RUN_STEPS = 3
"""Most steps that the first run of a captured graph takes: an ordinary one, the capture, and a replay."""


@dataclass(frozen=True, kw_only=True)
class Beginning(NewSentence):
    """A search that is to begin in a slot."""

    rules: Rules


class Searches:
    """The searches of one mode on a device. A step runs the slots from 0 to the last one in use."""

    def __init__(
        self, sessions: DeviceSessions, variant: SearchVariant, rows: int, max_rows: int, max_tokens: int
    ) -> None:
        """No searches yet. rows: k, of each sentence. max_rows, max_tokens: see `Chain`. Takes a decoder session for
        itself, and opens it if none is open. Raises InvalidArtifactError, and FailedPreconditionError if the device has
        too little memory."""
        self.sessions = sessions
        self.variant = variant
        self.rows = rows
        self.device = sessions.device
        tree = variant == "search_beam"
        self.chain = Chain(rows, max_rows, max_tokens, sessions.arch.max_positions, tree=tree)
        self._longest = self.chain.buckets[-1][0].target
        session = sessions.checkout_decoder(variant)
        self._inputs = {i.name: i for i in session.get_inputs()}
        self._outputs = [o.name for o in session.get_outputs()]
        self._steps = BoundSteps(session, self.device)
        axes = {n: (i.type, tuple(i.shape)) for n, i in self._inputs.items() if n.startswith(GROWING_INPUTS)}
        axes = dict(sorted(axes.items(), key=lambda cache: _copied_together(cache[0], cache[1][1])))
        fills = {"node_bias": MASKED}
        self.pools = Pools({n: CacheShape(*cache, fills.get(n, 0.0)) for n, cache in axes.items()}, sessions.memory)
        most = self.chain.slots(0)
        sizes = {"B": most, "k": rows, "P": self._longest}
        others = [i for n, i in self._inputs.items() if not n.startswith(GROWING_INPUTS) and n not in ON_HOST]
        self.arrays = SearchArrays(others, sizes, sessions.memory)
        self.mirror = self.arrays.mirror
        self._state = self.arrays.views
        self._collector = Collector(sessions.collector(), self._state, sessions.memory)
        self.encoder = sessions.device_encoder
        self._staging = Staging(axes, self.encoder, sessions.memory)
        self._unstepped = False
        """Whether searches have begun since the last step."""
        self.slots = most
        """Most searches that can run at the same time."""
        self._geometry: Geometry | None = None
        """None while there is no search."""
        self._step: BoundStep | None = None
        """The binding of the present size and geometry; None: it has to be looked up."""
        self._size = 0
        """Slots that a step runs."""

    # -- sentences join and leave ------------------------------------------------------------------------------------

    def hold(self, slots: int, source: int, target: int) -> bool:
        """Whether slots 0 … `slots` - 1 can hold searches, the longest with `source` source tokens and at most `target`
        target tokens. A single search always fits."""
        return slots <= self.chain.slots(self._bucket(source, target))

    def _bucket(self, source: int, target: int) -> int:
        present = 0 if self._geometry is None else self._geometry.bucket
        return max(present, self.chain.bucket_for(source, target))

    def begin(self, new: Sequence[Beginning], slots: int, upcoming: Upcoming = tuple) -> None:
        """Encodes sentences and lets their searches begin with the next step. Searches that run go on.

        slots: one more than the last slot in use, also by `new`. `hold` must be true of these slots. upcoming:
        sentences that may be encoded with them, for a later `begin`.
        """
        self.wait()
        bucket = self._bucket(max(len(b.source) for b in new), max(b.rules.limit for b in new))
        self._grow_to(self.chain.geometry(bucket, self._geometry))
        host = self.mirror.host
        if not self._unstepped:
            host["fresh"][:] = 0
        for begun in new:
            slot = begun.slot
            rules = begun.rules
            host["limits"][slot] = rules.limit
            host["minimums"][slot] = rules.min_length
            host["penalties"][slot] = rules.length_penalty
            host["fresh"][slot] = 1
            if "source_lengths" in host:
                host["source_lengths"][slot] = len(begun.source)
        self.mirror.write(*(name for name in WRITTEN if name in host))
        geometry = self._present
        self._staging.fill(new, self.pools.views(geometry), geometry.source, upcoming)
        self._unstepped = True
        self.fit(slots)

    def stop(self, slots: Sequence[int]) -> None:
        """Ends searches early: the device does not go on with them."""
        self.wait()
        self.mirror.host["limits"][list(slots)] = 0
        self.mirror.write("limits")

    def fit(self, slots: int) -> None:
        """Steps run slots 0 … `slots` - 1 from now on. 0: no search runs, and the next searches may have smaller
        caches."""
        if not slots:
            self.wait()
            self._geometry = self._step = None
            return
        size = self._present.size_for(slots)
        if size != self._size:
            self._size = size
            self._step = None

    # -- steps -------------------------------------------------------------------------------------------------------

    def room(self, used: int) -> int:
        """Steps that surely fit the caches when `used` positions of a sentence are used (see `report`)."""
        geometry = self._present
        if geometry.full or not geometry.nodes:
            return UNLIMITED_STEPS
        return (geometry.nodes - used) // self.rows

    def grow(self, used: int) -> None:
        """Makes room for further steps."""
        self.wait()
        nodes = used + FIRST_RUN_STEPS * self.rows
        self._grow_to(self.chain.geometry(self._present.bucket, self._present, nodes))

    def run(self) -> int:
        """Launches a step and does not wait for it. Returns how many steps it was: several for the first run of a graph
        that is captured."""
        step = self._step or self._bound()
        begins = self._unstepped
        self._unstepped = False
        if step.captured or self.device.kind == "cpu":
            step.run(wait=False)
            return 1
        return self._first_run(step, begins=begins)

    def _first_run(self, step: BoundStep, *, begins: bool) -> int:
        """Every execution is a step of the search; the lengths say how many there were. begins: searches begin with
        this step, those that are `fresh`: until then their slots have the lengths of earlier ones."""
        self.wait()
        self.mirror.read("lengths")
        host = self.mirror.host
        before = np.where(begins & (host["fresh"] > 0), 0, host["lengths"])
        step.run()
        self.mirror.read("lengths")
        return max(1, int((host["lengths"] - before)[: self._size].max()))

    def wait(self) -> None:
        """Waits until the steps that were launched have ended."""
        if self._step is not None:
            self._step.wait()

    def report(self) -> tuple[int, int]:
        """After the steps that were launched: how many searches still run, and the most positions of the caches that
        the tree of any sentence takes."""
        self.wait()
        self.mirror.read("report")
        running, used = self.mirror.host["report"].tolist()
        return running, used

    def done(self) -> Int32s:
        """`[B]` of each slot, after the steps that were reported: 0 while its search runs, 1 if it has ended, and
        `history.FAILED`. It changes with the next step."""
        self.mirror.read("done")
        return self.mirror.host["done"]

    def collect(self, slots: Sequence[int], steps: int) -> Ended:
        """The results of searches that have ended. None of them has more than `steps` tokens."""
        return self._collector.collect(slots, min(steps, self._longest))

    # -- memory ------------------------------------------------------------------------------------------------------

    def clean(self, slots: Sequence[int]) -> None:
        """Clears the caches of failed searches, which may hold NaN."""
        self.wait()
        self.pools.clean(self._present, slots)
        self._staging.clean()

    def warm_up(self) -> None:
        """Takes all memory and runs a step of every geometry and size, the encoder on every shape, and all readings of
        ended searches. No search may run: all slots are free, so that steps change nothing."""
        assert self._geometry is None
        self.mirror.host["limits"][:] = 0
        self.mirror.write("limits")
        self.pools.take_all(self.chain)
        for geometry in self.chain:
            self.encoder.warm_up(self.pools.views(geometry), geometry.slots, geometry.source)
            self._staging.warm_up(geometry.source)
            for size in geometry.sizes():
                self._geometry = geometry
                self._size = size
                self._step = None
                self._bound().run()
        self._collector.warm_up()
        self.fit(0)

    def close(self) -> None:
        """Gives the memory back. The session goes too, with the graphs captured in it; a fresh one is opened meanwhile.
        Nothing may be called afterwards."""
        self.wait()
        self.pools.close()
        self._staging.close()
        del self._steps, self._step, self._collector, self._state, self.arrays, self.mirror
        self.sessions.prefetch_decoder(self.variant)

    @property
    def _present(self) -> Geometry:
        assert self._geometry is not None
        return self._geometry

    def _grow_to(self, wanted: Geometry) -> None:
        if self._geometry is None:
            # Operators check the lengths of free slots too, and an ended search may have been longer than these caches.
            self.mirror.host["lengths"][:] = 0
            self.mirror.write("lengths")
            self._geometry = wanted
            self._step = None
            self._size = 0
            return
        for geometry in self.chain.path(self._geometry, wanted):
            self.pools.move(self._geometry, geometry)
            self._geometry = geometry
            self._step = None
        self._size = min(self._size, wanted.slots)

    def _bound(self) -> BoundStep:
        """The binding of the present geometry and size."""
        geometry = self._present
        size = self._size

        def bind(step: BoundStep) -> None:
            self._bind(step, geometry, size)

        self._step = self._steps.step((geometry, size), bind)
        return self._step

    def _bind(self, step: BoundStep, geometry: Geometry, size: int) -> None:
        caches = self.pools.views(geometry)
        for name in self._inputs:
            if name in ON_HOST:
                step.bound_arrays.append(self._on_host(name, geometry))
                step.binding.bind_cpu_input(name, step.bound_arrays[-1])
            else:
                (caches if name in caches else self._state)[name].slots(size).bind_input(step.binding, name)
        for name in self._outputs:
            if name == "report":
                self._state[name].bind_output(step.binding, name)
            else:
                cache = name.replace("present_", "past_").removeprefix("next_")
                (caches if cache in caches else self._state)[cache].slots(size).bind_output(step.binding, name)

    def _on_host(self, name: str, geometry: Geometry) -> npt.NDArray[Any]:
        if name == "candidates":
            return np.array([min(candidates_needed(self.rows), self.sessions.arch.vocab_size)], np.int64)
        return np.array([geometry.target], np.int32)


def _copied_together(name: str, axes: tuple[str | int, ...]) -> tuple[bool, int]:
    """Sorts caches so that those lie side by side that one copy can move: cross caches with as many heads."""
    cross = name.startswith("cross_")
    return not cross, int(axes[1]) if cross else 0


class SearchArrays:
    """The arrays of searches whose sizes do not depend on the geometry: one block of memory, with a mirror, for arrays
    that the host writes or reads, and one block for all other arrays. An output `next_X` of a step has the memory of
    the input `X`."""

    def __init__(self, inputs: Iterable[Any], sizes: Mapping[str, int], memory: LevelMemory) -> None:
        """inputs: of the graph, as an ONNX Runtime session gives them. sizes: of the axes B, k and P. Raises
        FailedPreconditionError if the device has too little memory."""
        shapes = {i.name: (i.type, [sizes.get(axis, axis) for axis in i.shape]) for i in inputs}
        mirrored = {name: shapes.pop(name) for name in (*WRITTEN, *READ) if name in shapes}
        mirrored["report"] = "tensor(int32)", [2]
        self.mirror = MirroredArrays(memory, arrangement_bytes(mirrored), "searches")
        self.views = self.mirror.arrange(mirrored)
        """Name → all slots of the array."""
        self._block = DeviceBlock(memory, arrangement_bytes(shapes), "searches")
        at = self._block.address
        for name, (kind, shape) in shapes.items():
            self.views[name] = DeviceArray(memory.device, kind, tuple(shape), at)
            at += round_up(self.views[name].bytes, ALIGNMENT)

"""Persistent bindings of one session on a device, and the CUDA graphs that are captured for them.

A captured graph replays the same kernels on the same addresses with one launch. ONNX Runtime knows it by a number, the
run option `gpu_graph_id`, and has no way to forget one: a session that is no longer used has to be closed. Three traps:

- The first run of a captured graph executes more than once (ordinarily, for the capture, and as a replay). A graph that
  feeds itself has then gone too far: its state has to be written again after that run (`BoundStep.captured`).
- A captured graph belongs to the thread that captured it, so one thread must run a session.
- While a graph is captured, no other thread may allocate or copy on the device (`hmc.engine.runtime.capture_lock`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from onnxruntime import InferenceSession, IOBinding, RunOptions

from hmc.engine.runtime import capture_lock
from hmc.engine.runtime.device import Device

log = logging.getLogger(__name__)

UNCAPTURED = -1
"""`gpu_graph_id` of runs that are not captured; it has to be given in a session that captures any."""
MOST_UNCAPTURED = 4
"""Bindings kept for runs that are not captured; the one used longest ago is dropped."""


class BoundStep:
    """A session's run with fixed inputs and outputs: the contents at their addresses may change between runs."""

    def __init__(self, session: InferenceSession, device: Device, graph: int, binding: IOBinding) -> None:
        """graph: the `gpu_graph_id`, or UNCAPTURED."""
        self.binding = binding
        self.captured = False
        """Whether its graph has been captured: then a run executes once, and is one launch."""
        self.bound_arrays: list[Any] = []
        """Arrays of the host to which it is bound; they must live as long."""
        self._session = session
        self._device = device
        self._graph = graph
        self._options = {wait: _run_options(device, graph, wait=wait) for wait in (True, False)}

    def run(self, *, wait: bool = True) -> None:
        """Runs it. wait: whether to wait until the device has ended. Otherwise the host goes on at once."""
        options = self._options[wait]
        if self._device.kind == "cpu" or self._graph == UNCAPTURED or self.captured:
            self._session.run_with_iobinding(self.binding, options)
            return
        with capture_lock.alone(self._device):
            self._session.run_with_iobinding(self.binding, options)
        self.captured = True

    def wait(self) -> None:
        """Waits until all runs of the session have ended on the device."""
        self.binding.synchronize_outputs()


class BoundSteps:
    """The bindings of one session by key, such as (size, geometry). Each is made when it is first needed."""

    def __init__(self, session: InferenceSession, device: Device) -> None:
        self.session = session
        self.device = device
        self._captured: dict[Hashable, BoundStep] = {}
        self._uncaptured: OrderedDict[Hashable, BoundStep] = OrderedDict()
        self._reasons: set[str] = set()

    def __len__(self) -> int:
        """Bindings that are captured and kept for ever."""
        return len(self._captured)

    def step(self, key: Hashable, bind: Callable[[BoundStep], None], uncaptured: str = "") -> BoundStep:
        """The binding of this key. bind: binds all inputs and outputs; called if the key is new.

        uncaptured: why runs of this key cannot be captured, if they cannot: it is logged once, and only the last few of
        these bindings are kept.
        """
        kept = self._uncaptured if uncaptured else self._captured
        if (step := kept.get(key)) is None:
            graph = UNCAPTURED if uncaptured else len(self._captured)
            step = BoundStep(self.session, self.device, graph, self.session.io_binding())
            bind(step)
            kept[key] = step
        if uncaptured:
            self._uncaptured.move_to_end(key)
            if len(self._uncaptured) > MOST_UNCAPTURED:
                self._uncaptured.popitem(last=False)
            if uncaptured not in self._reasons and self.device.kind != "cpu":
                self._reasons.add(uncaptured)
                log.info("steps run without a captured graph: %s", uncaptured)
        return step


def _run_options(device: Device, graph: int, *, wait: bool) -> RunOptions:
    options = RunOptions()
    if device.kind != "cpu":
        options.add_run_config_entry("gpu_graph_id", str(graph))
        if not wait:
            options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options

"""Watches ONNX Runtime from below: every run of a session, every binding and every captured graph of this process.

It replaces methods of the runtime's compiled classes, so it sees calls whatever part of HMC makes them, and does not
depend on how that part is built. Sessions are told apart by the inputs of their graphs.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as compiled

Role = Literal["encoder", "step", "other"]
CUDA = "CUDAExecutionProvider"
NO_CAPTURE = "-1"
"""The `gpu_graph_id` of a run that is not captured."""


@dataclass(frozen=True)
class Bound:
    """Memory that an input or an output is bound to."""

    address: int
    shape: tuple[int, ...]


@dataclass
class Run:
    """One run of a session on the device."""

    role: Role
    """Of a session on CUDA; a session on the CPU is an other one."""
    session: Any
    inputs: Mapping[str, Bound]
    outputs: Mapping[str, Bound]
    graph: str | None
    """The id of the captured graph that it replays or captures; None: it is not captured."""
    first: bool
    """Whether it is the first run of this graph with this id."""
    began: float
    ended: float


Listener = Callable[[Run], None]


@dataclass
class Watch:
    """Counts since the process began."""

    options: dict[str, str] = field(default_factory=dict)
    """Options of the CUDA provider that replace those that HMC gives, for sessions that are opened from now on."""
    listeners: list[Listener] = field(default_factory=list)
    """Called after each run, in the thread that ran it."""
    runs: Counter[Role] = field(default_factory=Counter)
    encoded: list[int] = field(default_factory=list)
    """Sentences of each call of the encoder, those that only fill up its size included."""
    bindings: int = 0
    """Bindings made."""
    graphs: set[tuple[int, str]] = field(default_factory=set)
    """(session, id) of every captured graph."""
    _bound: weakref.WeakKeyDictionary[Any, tuple[dict[str, Bound], dict[str, Bound]]] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    _roles: weakref.WeakKeyDictionary[Any, Role] = field(default_factory=weakref.WeakKeyDictionary)
    _captures: weakref.WeakKeyDictionary[Any, int] = field(default_factory=weakref.WeakKeyDictionary)
    """A number for each session that captures graphs, 0 for the others."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def live_bindings(self) -> int:
        """Bindings that exist now."""
        return len(self._bound)

    @property
    def live_graphs(self) -> int:
        """Captured graphs whose session is still open."""
        alive = set(self._captures.values())
        return sum(session in alive for session, _ in self.graphs)

    def begin(self) -> None:
        """Replaces the methods."""
        session, binding = compiled.InferenceSession, compiled.SessionIOBinding
        session.initialize_session = self._opening(session.initialize_session)
        session.run_with_iobinding = self._running(session.run_with_iobinding)
        session.run = self._running_unbound(session.run)
        binding.__init__ = self._making(binding.__init__)
        for name, side in (("input", 0), ("output", 1)):
            value, address = f"bind_ortvalue_{name}", f"bind_{name}"
            setattr(binding, value, self._binding_value(getattr(binding, value), side))
            setattr(binding, address, self._binding_address(getattr(binding, address), side))

    # -- the methods -------------------------------------------------------------------------------------------------

    def _opening(self, original: Any) -> Any:
        def initialize_session(session: Any, providers: Any, options: Any, *rest: Any) -> Any:
            given = [
                {**chosen, **self.options} if name == CUDA else chosen
                for name, chosen in zip(providers, options or [{}] * len(providers), strict=True)
            ]
            return original(session, providers, given, *rest)

        return initialize_session

    def _making(self, original: Any) -> Any:
        def make(binding: Any, session: Any) -> None:
            original(binding, session)
            self.bindings += 1
            self._bound[binding] = {}, {}

        return make

    def _binding_value(self, original: Any, side: int) -> Any:
        def bind(binding: Any, name: str, value: Any) -> Any:
            self._bound[binding][side][name] = Bound(value.data_ptr(), tuple(value.shape()))
            return original(binding, name, value)

        return bind

    def _binding_address(self, original: Any, side: int) -> Any:
        def bind(binding: Any, name: str, *where: Any) -> Any:
            if len(where) == 4:  # device, type, shape, address
                self._bound[binding][side][name] = Bound(where[3], tuple(where[2]))
            elif isinstance(where[0], np.ndarray):  # an array of the host
                self._bound[binding][side][name] = Bound(where[0].ctypes.data, where[0].shape)
            return original(binding, name, *where)

        return bind

    def _running(self, original: Any) -> Any:
        def run_with_iobinding(session: Any, binding: Any, options: Any = None) -> Any:
            began = time.perf_counter()
            result = original(session, binding, options)
            ended = time.perf_counter()
            inputs, outputs = self._bound[binding]
            graph = self._graph(session, options)
            first = graph is not None and (self._captures[session], graph) not in self.graphs
            if graph is not None:
                self.graphs.add((self._captures[session], graph))
            self._note(Run(self._role(session), session, inputs, outputs, graph, first, began, ended))
            return result

        return run_with_iobinding

    def _running_unbound(self, original: Any) -> Any:
        def run(session: Any, *arguments: Any) -> Any:
            self.runs[self._role(session)] += 1
            return original(session, *arguments)

        return run

    # -- what a run is -----------------------------------------------------------------------------------------------

    def _note(self, run: Run) -> None:
        self.runs[run.role] += 1
        if run.role == "encoder":
            self.encoded.append(run.inputs["source"].shape[0])
        for listener in self.listeners:
            listener(run)

    def _role(self, session: Any) -> Role:
        if session not in self._roles:
            names = {given.name for given in session.inputs_meta} if CUDA in session.get_providers() else set()
            step: Role = "step" if "tokens" in names else "other"
            self._roles[session] = "encoder" if "source" in names else step
        return self._roles[session]

    def _graph(self, session: Any, options: Any) -> str | None:
        """The id of the captured graph of a run; ONNX Runtime's default is 0."""
        if session not in self._captures:
            captures = session.get_provider_options().get(CUDA, {}).get("enable_cuda_graph") == "1"
            self._captures[session] = next(self._numbers) if captures else 0
        if not self._captures[session]:
            return None
        try:
            graph: str = options.get_run_config_entry("gpu_graph_id") if options is not None else "0"
        except RuntimeError:
            graph = "0"
        return None if graph == NO_CAPTURE else graph

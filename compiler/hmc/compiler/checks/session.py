"""A graph in ONNX Runtime on the CPU."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime

from hmc.artifact.element_types import BY_RUNTIME
from hmc.compiler.serialize import in_memory

Arrays = dict[str, npt.NDArray[Any]]
"""Name of a graph input or output → its value."""


class OpenGraph:
    """One graph. Runs take and return arrays by their names.

    The session is opened when it is first needed: until then, the graph takes no memory beside its weights.
    """

    def __init__(
        self, graph: bytes, *, weights: Mapping[str, npt.NDArray[Any]] | None = None, folder: Path | None = None
    ) -> None:
        """weights: initializers that are not in `graph`; they are used where they are, not copied. folder: where the
        files lie that the graph's external data names."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.enable_cpu_mem_arena = False  # it keeps what the largest run needed
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # spinning only speeds up short runs
        self._weights = {name: onnxruntime.OrtValue.ortvalue_from_numpy(w) for name, w in (weights or {}).items()}
        if self._weights:
            options.add_external_initializers(list(self._weights), list(self._weights.values()))
        if folder is not None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        self._graph = graph
        self._options = options

    @cached_property
    def inputs(self) -> dict[str, tuple[str, list[Any]]]:
        """Name of an input → its type, as ONNX Runtime writes it, and its dimensions, numbers or names."""
        # Names, types and shapes alone: the objects of ONNX Runtime would keep a closed session alive.
        return {i.name: (str(i.type), list(i.shape)) for i in self._session.get_inputs()}

    @cached_property
    def outputs(self) -> list[str]:
        """Names of the outputs."""
        return [o.name for o in self._session.get_outputs()]

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        session = onnxruntime.InferenceSession(self._graph, self._options, providers=["CPUExecutionProvider"])
        return_free_memory()  # opening packs the weights, which takes a second copy of each for a while
        return session

    @classmethod
    def from_model(cls, model: ir.Model) -> OpenGraph:
        """A graph that was just written; the model is not usable afterwards."""
        file = in_memory(model)
        return cls(file.graph, weights=file.weights)

    @classmethod
    def read(cls, bundle: Path, name: str) -> OpenGraph:
        """The graph file `name` of a bundle."""
        return cls((bundle / name).read_bytes(), folder=bundle.absolute())

    def close(self) -> None:
        """Frees the weights; the graph must not be run any more."""
        self.__dict__.pop("_session", None)
        self._graph = b""
        self._options = None  # they hold the weights too
        self._weights.clear()
        return_free_memory()

    def run(self, feeds: Arrays) -> Arrays:
        """All outputs for the inputs among `feeds`; the rest of `feeds` is ignored."""
        used = {name: value for name, value in feeds.items() if name in self.inputs}
        return dict(zip(self.outputs, self._session.run(self.outputs, used), strict=True))

    def empty(self, prefix: str, **sizes: int) -> Arrays:
        """Zeros for every input whose name begins with `prefix`, of its type; `sizes` gives its named dimensions."""
        return {
            name: np.zeros([sizes.get(size, size) for size in shape], BY_RUNTIME[kind].host)
            for name, (kind, shape) in self.inputs.items()
            if name.startswith(prefix)
        }


def own_slots(encoder: OpenGraph, sentences: int, room: int) -> Arrays:
    """The inputs with which an encoder in device form writes sentence i to slot i of empty caches; otherwise no
    inputs."""
    if "slots" not in encoder.inputs:
        return {}
    return {"slots": np.arange(sentences)[:, None], **encoder.empty("cross_", B=sentences, S=room)}


def return_free_memory() -> None:
    """Gives the memory of closed graphs back to the system; glibc would keep most of it, other C libraries do not."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)

"""Graphs and their weights as bytes: in a bundle, and in ONNX Runtime sessions. The only file that touches protobuf.

In a bundle, weights go to a folder of files that are named by their content, so that graphs share them. A session gets
the arrays themselves, so that no copy of the weights is made.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes.common import CheckerPass

from hmc.artifact.bundle.manifest import WEIGHTS, lexicon_path
from hmc.artifact.bundle.shortlist import Lexicon
from hmc.artifact.storage.files import sha256_file
from hmc.compiler.derived import DerivedArrays

INLINE_BYTES = 1024
"""Tensors up to this size stay inside the graph file."""


def check_structure(model: ir.Model) -> None:
    """Runs the ONNX checker on a graph. Operators outside of the standard have no schema there and are not checked.

    Raises onnx.checker.ValidationError.
    """
    ordered = list(model.graph.initializers.values())
    CheckerPass()(model)
    model.graph.initializers.clear()  # the pass moves large ones to the end, and their order is part of the bytes
    for value in ordered:
        model.graph.initializers.add(value)


@dataclass
class BundleFolder:
    """A folder that graphs are written to, with the weights that were already written there."""

    path: Path
    derived: DerivedArrays = field(default_factory=DerivedArrays)
    """Remembers the digests of arrays that several graphs have."""

    def write_graph(self, model: ir.Model, name: str) -> dict[str, str]:
        """Writes the graph file `name`, and its weights, except the weights that an earlier graph has written.

        Locations of weights are relative to the bundle, not to the graph: a loader gives ONNX Runtime the bundle as the
        folder of external initializers. Returns path within the bundle → sha256, of the graph and all its weights.
        """
        files: dict[str, str] = {}
        for value in model.graph.initializers.values():
            array = _large_array(value)
            if array is None:
                continue
            location = self.write_weight(array, files)
            value.const_value = _external(value, array, location)
        return files | self.write_file(name, ir.to_proto(model).SerializeToString(deterministic=True))

    def write_weight(self, array: npt.NDArray[Any], files: dict[str, str]) -> str:
        """Writes a tensor to a file that is named by its content, unless it is there. Returns its path within the
        bundle, and notes its sha256 in `files`."""
        digest = self.derived.get(_sha256, array)
        location = f"{WEIGHTS}/{digest[:32]}.bin"
        target = self.path / location
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(_bytes(array))
        files[location] = digest
        return location

    def write_file(self, name: str, content: bytes) -> dict[str, str]:
        """Writes a file of a level. Returns its path within the bundle → sha256."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return {name: hashlib.sha256(content).hexdigest()}

    def write_lexicon(self, lexicon: Lexicon) -> dict[str, str]:
        """Writes a lexicon, unless it is there. Returns its path within the bundle → sha256."""
        temporary = self.path / WEIGHTS / ".lexicon.new"
        temporary.parent.mkdir(parents=True, exist_ok=True)
        lexicon.save(temporary)
        digest = sha256_file(temporary)
        temporary.replace(self.path / lexicon_path(digest))
        return {lexicon_path(digest): digest}


@dataclass(frozen=True)
class GraphInMemory:
    """A graph for a session that reads its large weights from arrays."""

    graph: bytes
    weights: dict[str, npt.NDArray[Any]]
    """Initializers that are not in `graph`."""


def in_memory(model: ir.Model) -> GraphInMemory:
    """Takes the large weights out of a graph. The model is not usable afterwards."""
    weights: dict[str, npt.NDArray[Any]] = {}
    for name, value in model.graph.initializers.items():
        array = _large_array(value)
        if array is not None:
            weights[name] = array
            value.const_value = _external(value, array, name)
    return GraphInMemory(ir.to_proto(model).SerializeToString(), weights)


def _large_array(value: ir.Value) -> npt.NDArray[Any] | None:
    """What an initializer holds, if that is more than INLINE_BYTES."""
    tensor = value.const_value
    if tensor is None or tensor.nbytes <= INLINE_BYTES:
        return None
    array: npt.NDArray[Any] = tensor.numpy()
    return array


def _external(value: ir.Value, array: npt.NDArray[Any], location: str) -> ir.ExternalTensor:
    """The same tensor, as data that lies in the file `location`."""
    tensor = value.const_value
    assert tensor is not None
    return ir.ExternalTensor(
        location, 0, array.nbytes, tensor.dtype, shape=ir.Shape(array.shape), name=tensor.name or "", base_dir=""
    )


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    """The array's memory; ONNX stores tensors little-endian, in C order."""
    return memoryview(array.reshape(-1).view(np.uint8).data)


def _sha256(array: npt.NDArray[Any]) -> str:
    return hashlib.sha256(_bytes(array)).hexdigest()

"""Writing a level's files: weights and lexica go to a content-addressed folder, graphs refer to weights as external
data. The only file that touches the protobuf side."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from hmc.artifact.bundle import WEIGHTS, lexicon_path
from hmc.artifact.files import sha256_file
from hmc.artifact.shortlist import Lexicon

INLINE_BYTES = 1024
"""Tensors up to this size stay inside the graph file."""


@dataclass
class WrittenGraph:
    """A graph on disk: bundle path → sha256 of the graph file and of every weight file it refers to."""

    files: dict[str, str]
    bytes: int


def write_graph(model: ir.Model, bundle: Path, name: str) -> WrittenGraph:
    """Writes `bundle / name` and its weights under `bundle / weights`; the same tensor is stored once, whoever asks.

    External data locations are relative to the bundle, not to the graph: a loader gives ONNX Runtime the bundle as
    the folder of external initializers. The written file is checked by the ONNX checker's rules for structure.
    """
    files: dict[str, str] = {}
    graph = model.graph
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.nbytes <= INLINE_BYTES:
            continue
        data = tensor.tobytes()
        location = f"{WEIGHTS}/{hashlib.sha256(data).hexdigest()[:32]}.bin"
        target = bundle / location
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_file():
            target.write_bytes(data)
        files[location] = sha256_file(target)
        value.const_value = ir.ExternalTensor(
            location,
            0,
            len(data),
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name or "",
            base_dir=bundle,
        )
    proto = ir.to_proto(model)
    path = bundle / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(proto.SerializeToString(deterministic=True))
    files[name] = sha256_file(path)
    return WrittenGraph(files, sum((bundle / f).stat().st_size for f in files))


def write_lexicon(lexicon: Lexicon, bundle: Path) -> tuple[str, str]:
    """Writes a lexicon into a bundle, once whoever asks. Returns its path there and its sha256."""
    temporary = bundle / WEIGHTS / ".lexicon.new"
    temporary.parent.mkdir(parents=True, exist_ok=True)
    lexicon.save(temporary)
    digest = sha256_file(temporary)
    temporary.replace(bundle / lexicon_path(digest))
    return lexicon_path(digest), digest


def check_structure(model: ir.Model) -> None:
    """Runs the ONNX checker on a graph with its weights inside. Raises onnx.checker.ValidationError."""
    proto = ir.to_proto(model)
    # Contrib operators have no schema in the checker; the graph's structure and standard operators are checked.
    onnx.checker.check_model(proto, full_check=False)


def serialized(model: ir.Model) -> bytes:
    """A graph with its weights inside, ready for an ONNX Runtime session."""
    return bytes(ir.to_proto(model).SerializeToString())

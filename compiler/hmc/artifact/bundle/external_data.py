"""Reads and changes the places of external weights in an ONNX file, without the onnx package.

The messages below declare only the fields that are needed, by their numbers in the ONNX format. Protobuf keeps all
other fields as they are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

PREPACKED = "prepacked"
"""Prefix of the keys under which ONNX Runtime stores packed forms of a tensor. A value is
`name|offset;length;checksum|…`, with one `offset;length;checksum` for each buffer."""

_FIELDS = {  # message → field → (number, type, whether it is repeated)
    "Model": {"graph": (7, "Graph", False)},
    "Graph": {"node": (1, "Node", True), "initializer": (5, "Tensor", True)},
    "Node": {"input": (1, "string", True)},
    "Tensor": {
        "dims": (1, "int64", True),
        "data_type": (2, "int32", False),
        "name": (8, "string", False),
        "external_data": (13, "Entry", True),
    },
    "Entry": {"key": (1, "string", False), "value": (2, "string", False)},
}


def _model_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="hmc/external_data.proto", package="hmc", syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    scalars = {"string": kinds.TYPE_STRING, "int64": kinds.TYPE_INT64, "int32": kinds.TYPE_INT32}
    for name, fields in _FIELDS.items():
        described = file.message_type.add(name=name)
        for field, (number, kind, repeats) in fields.items():
            added = described.field.add(name=field, number=number)
            added.label = kinds.LABEL_REPEATED if repeats else kinds.LABEL_OPTIONAL
            added.type = scalars.get(kind, kinds.TYPE_MESSAGE)
            if kind not in scalars:
                added.type_name = f".hmc.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("hmc.Model"))


_MODEL = _model_class()


@dataclass(frozen=True)
class Span:
    """A range of bytes in a file."""

    offset: int
    length: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that is stored outside of its graph file, with its packed forms."""

    name: str
    location: str
    """Path of the weight file."""
    raw: Span
    """The tensor itself."""
    packed: dict[str, tuple[Span, ...]]
    """ONNX Runtime's name of the packed form → its buffers."""
    uses: int
    """Number of node inputs that are this tensor."""
    shape: tuple[int, ...] = ()
    element_type: int = 0
    """Its number in ONNX."""

    @property
    def held_bytes(self) -> int:
        """Bytes that a session keeps in memory: the packed forms, and the tensor itself if a node uses it unpacked."""
        packed = sum(span.length for span in chain.from_iterable(self.packed.values()))
        return packed + (self.raw.length if self.uses > len(self.packed) else 0)


class GraphFile:
    """An ONNX file whose external tensors can be listed and moved. Subgraphs of nodes are not searched."""

    def __init__(self, content: bytes) -> None:
        """content: bytes of the file. Raises ValueError if they are not an ONNX file."""
        try:
            self._model = _MODEL.FromString(content)
        except message.DecodeError as error:
            raise ValueError(f"not an ONNX file: {error}") from error

    def stored(self) -> list[StoredTensor]:
        """Lists the tensors that are stored outside of the file. Raises ValueError if an entry is malformed."""
        uses = Counter(chain.from_iterable(node.input for node in self._model.graph.node))
        tensors = [t for t in self._model.graph.initializer if t.external_data]
        return [_stored(t, uses[t.name]) for t in tensors]

    def move(self, moved: dict[str, StoredTensor]) -> None:
        """Changes the places of tensors. moved: name of a tensor → its new place."""
        for tensor in self._model.graph.initializer:
            if tensor.name in moved:
                entries = _entries(moved[tensor.name])
                del tensor.external_data[:]
                for key, value in entries:
                    tensor.external_data.add(key=key, value=value)

    def content(self) -> bytes:
        """The bytes of the changed file."""
        written: bytes = self._model.SerializeToString(deterministic=True)
        return written


def _stored(tensor: Any, uses: int) -> StoredTensor:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if not all(isinstance(part, str) for part in chain(entries, entries.values())):  # bytes: not UTF-8
        raise ValueError(f"{tensor.name}: its external data is not UTF-8")
    packed = {}
    for key, value in entries.items():
        if key.startswith(PREPACKED):
            name, *buffers = value.split("|")
            parts = [buffer.split(";") for buffer in buffers]
            packed[name] = tuple(Span(int(offset), int(length)) for offset, length, _ in parts)
    try:
        raw = Span(int(entries.get("offset", "0")), int(entries["length"]))
        return StoredTensor(tensor.name, entries["location"], raw, packed, uses, tuple(tensor.dims), tensor.data_type)
    except KeyError as error:
        raise ValueError(f"{tensor.name}: its external data has no {error}") from error


def _entries(tensor: StoredTensor) -> list[tuple[str, str]]:
    raw = tensor.raw
    entries = [("location", tensor.location), ("offset", str(raw.offset)), ("length", str(raw.length))]
    for index, (name, spans) in enumerate(tensor.packed.items()):
        buffers = "|".join(f"{span.offset};{span.length};0" for span in spans)
        entries.append((f"{PREPACKED}_{index}", f"{name}|{buffers}"))
    return entries

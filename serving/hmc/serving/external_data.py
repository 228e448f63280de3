"""Where the weights of an ONNX file lie: reading and changing that, and nothing else, without the onnx package.

The messages below name only the fields that are needed, by their numbers in the ONNX format; protobuf carries all
others along unchanged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

PREPACKED = "prepacked"
"""How ONNX Runtime's keys for packed forms of a tensor begin. The value is `name|offset;length;checksum|…`."""

_FIELDS = {  # message → field → (number, type, whether it repeats)
    "Model": {"graph": (7, "Graph", False)},
    "Graph": {"node": (1, "Node", True), "initializer": (5, "Tensor", True)},
    "Node": {"input": (1, "string", True)},
    "Tensor": {"name": (8, "string", False), "external_data": (13, "Entry", True)},
    "Entry": {"key": (1, "string", False), "value": (2, "string", False)},
}


def _model_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="hmc/external_data.proto", package="hmc", syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in _FIELDS.items():
        described = file.message_type.add(name=name)
        for field, (number, kind, repeats) in fields.items():
            added = described.field.add(name=field, number=number)
            added.label = kinds.LABEL_REPEATED if repeats else kinds.LABEL_OPTIONAL
            added.type = kinds.TYPE_STRING if kind == "string" else kinds.TYPE_MESSAGE
            if kind != "string":
                added.type_name = f".hmc.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("hmc.Model"))


_MODEL = _model_class()


@dataclass(frozen=True)
class Span:
    """Bytes of a file."""

    offset: int
    length: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that lies outside its graph file, with the forms that kernels packed it into."""

    name: str
    location: str
    raw: Span
    packed: dict[str, tuple[Span, ...]]
    """ONNX Runtime's name of the packed form → its buffers."""
    uses: int
    """Node inputs that are this tensor."""

    @property
    def held_bytes(self) -> int:
        """Bytes that a session keeps: the packed forms, and the tensor itself if something uses it unpacked."""
        packed = sum(span.length for spans in self.packed.values() for span in spans)
        return packed + (self.raw.length if self.uses > len(self.packed) else 0)


class GraphFile:
    """An ONNX file whose tensors can be looked up and moved. Graphs inside of nodes are not looked at."""

    def __init__(self, content: bytes) -> None:
        """Raises ValueError for bytes that are no ONNX file."""
        try:
            self._model = _MODEL.FromString(content)
        except message.DecodeError as error:
            raise ValueError(f"not an ONNX file: {error}") from error

    def stored(self) -> list[StoredTensor]:
        """The tensors outside of the file. Raises ValueError where they cannot be made out."""
        uses = Counter(name for node in self._model.graph.node for name in node.input)
        tensors = [t for t in self._model.graph.initializer if t.external_data]
        return [_stored(t, uses[t.name]) for t in tensors]

    def move(self, moved: dict[str, StoredTensor]) -> None:
        """Gives tensors, by name, the place that is said there."""
        for tensor in self._model.graph.initializer:
            if tensor.name in moved:
                entries = _entries(moved[tensor.name])
                del tensor.external_data[:]
                for key, value in entries:
                    tensor.external_data.add(key=key, value=value)

    def content(self) -> bytes:
        """The file."""
        written: bytes = self._model.SerializeToString(deterministic=True)
        return written


def _stored(tensor: Any, uses: int) -> StoredTensor:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if not all(isinstance(part, str) for entry in entries.items() for part in entry):  # bytes where it is no UTF-8
        raise ValueError(f"{tensor.name}: its external data is not text")
    packed = dict(_packed(value) for key, value in entries.items() if key.startswith(PREPACKED))
    try:
        raw = Span(int(entries.get("offset", "0")), int(entries["length"]))
        return StoredTensor(tensor.name, entries["location"], raw, packed, uses)
    except KeyError as error:
        raise ValueError(f"{tensor.name}: its external data has no {error}") from error


def _packed(value: str) -> tuple[str, tuple[Span, ...]]:
    name, *buffers = value.split("|")
    parts = [buffer.split(";") for buffer in buffers]
    return name, tuple(Span(int(offset), int(length)) for offset, length, _ in parts)


def _entries(tensor: StoredTensor) -> list[tuple[str, str]]:
    raw = tensor.raw
    entries = [("location", tensor.location), ("offset", str(raw.offset)), ("length", str(raw.length))]
    for index, (name, spans) in enumerate(tensor.packed.items()):
        buffers = "|".join(f"{span.offset};{span.length};0" for span in spans)
        entries.append((f"{PREPACKED}_{index}", f"{name}|{buffers}"))
    return entries

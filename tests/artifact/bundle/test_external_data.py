"""Places of external weights, read and changed, compared with the onnx package."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from hmc.artifact.bundle.external_data import GraphFile, Span, StoredTensor


@pytest.fixture
def content(tiny_bundle: Path) -> bytes:
    return (tiny_bundle / "full-int8" / "decoder.onnx").read_bytes()


def test_a_graph_comes_through_unchanged(content: bytes) -> None:
    assert onnx.load_from_string(GraphFile(content).content()) == onnx.load_from_string(content)


def test_it_finds_the_same_tensors_as_onnx(content: bytes) -> None:
    found = {tensor.name: tensor for tensor in GraphFile(content).stored()}
    graph = onnx.load_from_string(content).graph
    outside = {t.name: {e.key: e.value for e in t.external_data} for t in graph.initializer if t.external_data}
    assert found.keys() == outside.keys()
    for name, entries in outside.items():
        place = found[name]
        assert (place.location, str(place.raw.length), place.packed) == (entries["location"], entries["length"], {})
        assert place.uses == sum(list(node.input).count(name) for node in graph.node)
    assert len(found) > 10


def test_a_moved_tensor_is_at_its_new_place(content: bytes) -> None:
    graph = GraphFile(content)
    old = graph.stored()[0]
    packed = {"Gemm+12": (Span(4096, 10), Span(8192, 20)), "MatMul+3": (Span(12288, 30),)}
    new = replace(old, location="elsewhere/x.bin", raw=Span(64, 5), packed=packed)
    graph.move({old.name: new})
    again = {tensor.name: tensor for tensor in GraphFile(graph.content()).stored()}
    assert again.pop(old.name) == new
    assert again == {tensor.name: tensor for tensor in GraphFile(content).stored()[1:]}


def test_bytes_held() -> None:
    tensor = StoredTensor("w", "w.bin", Span(0, 100), {"Gemm+1": (Span(128, 40), Span(256, 8))}, uses=1)
    assert tensor.held_bytes == 48  # the packed form only
    assert replace(tensor, uses=2).held_bytes == 148  # a node reads the raw tensor too
    assert replace(tensor, packed={}).held_bytes == 100


def test_bytes_that_are_not_a_graph_are_refused() -> None:
    with pytest.raises(ValueError, match="not an ONNX file"):
        GraphFile(b"\xff\xff\xff")
    model = onnx.ModelProto()
    model.graph.initializer.add(name="w").external_data.add(key="offset", value="0")
    with pytest.raises(ValueError, match="w: its external data has no 'length'"):
        GraphFile(model.SerializeToString()).stored()


def test_any_damaged_byte_is_an_error_or_harmless() -> None:
    model = onnx.ModelProto()
    tensor = model.graph.initializer.add(name="weights")
    entries = {"location": "a/b.bin", "offset": "64", "length": "4096", "prepacked_0": "MatMul+3|4096;4608;0"}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    content, refused = model.SerializeToString(), 0
    assert GraphFile(content).stored()[0].packed
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        try:
            GraphFile(bytes(damaged)).stored()
        except ValueError:
            refused += 1
    assert refused > len(content) // 2

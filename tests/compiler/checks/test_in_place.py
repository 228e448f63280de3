"""Graphs that are bound in place are proved safe, as they are written and as ONNX Runtime runs them."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest
from tests.compiler.graphs.search.search_run import open_session
from tests.tiny import random_layout, random_tensors, tiny_architecture

from hmc.artifact.bundle.manifest import SEARCH_VARIANTS, SearchVariant
from hmc.artifact.checkpoint.slimming import slim_tensors
from hmc.compiler.checks.in_place import UnsafeGraphError, check_in_place, pairs
from hmc.compiler.graph import GraphBuilder
from hmc.compiler.graphs.decoder import author_decoder
from hmc.compiler.precisions.linears import FloatLinears

ARCH = tiny_architecture()
FULL = ARCH.full_layout()


def decoder(variant: SearchVariant, floats: str) -> GraphBuilder:
    layout = random_layout(ARCH, 5)
    tensors = slim_tensors(random_tensors(ARCH, FULL), ARCH, FULL, layout)
    return author_decoder(ARCH, layout, tensors, FloatLinears(floats), variant=variant, device_form=True)


@pytest.mark.parametrize("floats", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("variant", SEARCH_VARIANTS)
def test_searches_are_safe(variant: SearchVariant, floats: str) -> None:
    model = decoder(variant, floats).model({})
    assert len(list(pairs(model.graph))) >= 15
    check_in_place(model, variant)


@pytest.mark.parametrize("variant", SEARCH_VARIANTS)
def test_searches_stay_safe_when_onnx_runtime_has_changed_them(variant: SearchVariant, tmp_path: Path) -> None:
    count = len(list(pairs(decoder(variant, "float32").model({}).graph)))
    open_session(decoder(variant, "float32"), str(tmp_path / "optimised.onnx"))
    optimised = ir.load(tmp_path / "optimised.onnx")
    assert len(list(pairs(optimised.graph))) == count
    check_in_place(optimised, variant)


def pair() -> tuple[GraphBuilder, ir.Value, ir.Value]:
    g = GraphBuilder("g")
    return g, g.input("state", "int32", ["B", 4]), g.input("other", "int32", ["B", 4])


def test_a_reader_that_may_run_later_is_named() -> None:
    g, state, other = pair()
    g.output(g.op("Add", [state, other]), "next_state", "int32", ["B", 4])
    g.output(g.op("Mul", [state, other]), "product", "int32", ["B", 4])
    with pytest.raises(UnsafeGraphError, match=r"G: next_state .*Add_0 \(Add\) onto state while Mul_1 \(Mul\) may"):
        check_in_place(g.model({}), "G")


def test_a_reader_of_a_view_is_a_reader() -> None:
    g, state, other = pair()
    view = g.op("Reshape", [state, g.ints(-1)])
    g.output(g.op("Add", [state, other]), "next_state", "int32", ["B", 4])
    g.output(g.op("ReduceSum", [view]), "sum", "int32", [1])
    with pytest.raises(UnsafeGraphError, match="while ReduceSum_2"):
        check_in_place(g.model({}), "G")


def test_a_node_that_moves_elements_may_not_write_over_them() -> None:
    g, state, other = pair()
    index = g.op("Cast", [other], to=int(ir.DataType.INT64))
    g.output(g.op("GatherElements", [state, index], axis=1), "next_state", "int32", ["B", 4])
    with pytest.raises(UnsafeGraphError, match=r"GatherElements_1 \(GatherElements\) may still read"):
        check_in_place(g.model({}), "G")


def test_a_broadcast_operand_may_not_be_written_over() -> None:
    g = GraphBuilder("g")
    state, other = g.input("state", "int32", ["B", 1]), g.input("other", "int32", ["B", 4])
    g.output(g.op("Add", [state, other]), "next_state", "int32", ["B", 4])
    with pytest.raises(UnsafeGraphError, match="next_state"):
        check_in_place(g.model({}), "G")


def test_sizes_and_earlier_readers_are_safe() -> None:
    g, state, other = pair()
    double = g.op("Add", [state, state])
    g.output(g.op("Shape", [state]), "shape", "int64", [2])
    g.output(g.op("GatherElements", [double, g.op("Cast", [other], to=int(ir.DataType.INT64))], axis=1), "next_state",
             "int32", ["B", 4])  # fmt: skip
    check_in_place(g.model({}), "G")


def test_keys_may_not_be_written_onto_values() -> None:
    g = GraphBuilder("g")
    past = [g.input(f"past_{n}_0", "float32", ["R", 2, "T", 8]) for n in ("key", "value")]
    rest = [g.input("query", "float32", ["R", 1, 48]), None, None]
    lengths = [g.input("lengths", "int32", ["R"]), g.input("total_length", "int32", [1])]
    made = g.op("GroupQueryAttention", [*rest, *past, *lengths], domain="com.microsoft", outputs=3, num_heads=2,
                kv_num_heads=2)  # fmt: skip
    for name, value in (("key", made[2]), ("value", made[1])):  # exchanged
        g.output(value, f"present_{name}_0", "float32", ["R", 2, "T", 8])
    with pytest.raises(UnsafeGraphError, match=r"present_key_0 .*; present_value_0 "):
        check_in_place(g.model({}), "G")

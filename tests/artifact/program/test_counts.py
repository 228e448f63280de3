"""What a program costs, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from hmc.artifact.program.counts import SPEEDS, Counts, Request, Speed, count, request_ms
from hmc.artifact.program.operations import Program

INTEGERS = {"scale": 0.1, "zero_point": 128}


def program(**more: Any) -> Program:
    """One layer of width 8 with two heads of width 4, and a vocabulary of 16."""
    shapes = {"table": [16, 8], "positions": [32, 8], "qkv": [24, 8], "out": [8, 8]}
    tensors = {name: {"file": "w", "shape": shape, "type": "float32"} for name, shape in shapes.items()}
    tensors["qkv8"] = {"file": "w", "shape": [8, 24], "type": "int8"}
    attend = {"kind": "attend_self", "input": "q", "plane": 0, "heads": 2, "width": 4, "scale": 0.5, "output": "h"}
    qkv = {"inputs": 8, "matrices": [{"weight": "qkv", "outputs": 24}]}
    out = {"inputs": 8, "matrices": [{"weight": "table", "outputs": 16}]}
    steps: list[dict[str, Any]] = [
        {"kind": "embed", "table": "table", "positions": "positions", "output": "x"},
        {"kind": "linear", "input": "x", "product": qkv, "output": "q"},
        attend,
        {"kind": "candidates", "input": "h", "product": out},
    ]
    content = {"type": "float32", "tensors": tensors, "encode": steps[:2], "step": steps}
    return Program.model_validate(content | more)


def test_each_operation_is_counted() -> None:
    found = program()
    embed, qkv, attend, candidates = (count(found, [each], rows=3, positions=5) for each in found.step)
    assert embed == Counts(1, 3 * 8 * 4)
    assert qkv == Counts(1, 24 * 8 * 4, 3 * 24 * 8)
    assert attend == Counts(1, 2 * 3 * 8 * 5 * 4, attended=2 * 3 * 8 * 5), "every row reads keys and values of its own"
    assert candidates == Counts(1, 16 * 8 * 4, 3 * 16 * 8)
    assert count(found, found.step, 3, 5) == embed + qkv + attend + candidates


def test_integers_are_counted_apart() -> None:
    product = {"inputs": 8, "matrices": [{"weight": "qkv8", "scales": "s", "outputs": 24}], "range": INTEGERS}
    found = program(step=[{"kind": "linear", "input": "x", "product": product, "output": "q"}])
    assert count(found, found.step, rows=3, positions=5) == Counts(1, 24 * 8, 0, 3 * 24 * 8)


def test_rows_of_the_encoder_read_the_same_keys() -> None:
    attend = {"kind": "attend_encoder", "input": "q", "heads": 2, "width": 4, "scale": 0.5, "output": "h"}
    found = program(encode=[attend])
    assert count(found, found.encode, rows=6, positions=6) == Counts(1, 2 * 6 * 8 * 4, attended=2 * 6 * 8 * 6)


def test_a_request_is_one_encoding_and_its_steps() -> None:
    speed = Speed(1e9, 1e9, 1e9, 1e9, operation_s=1e-3, step_s=1.0, row_s=0.5)
    ms = request_ms(program(), Request(sentences=2, beam=3, source=4, target=5), speed)
    operations = 2 + 5 * 4
    assert ms == pytest.approx(1e3 * (6 * 1.0 + 5 * 6 * 0.5 + operations * 1e-3), rel=1e-3)


def test_on_a_gpu_operations_cost_more_than_what_they_compute() -> None:
    """So a head saves little there, and an attention that is gone saves its operations."""
    found = program()
    one = count(found, [found.step[1]], rows=1, positions=8)
    assert SPEEDS["cuda"].seconds(one) == pytest.approx(SPEEDS["cuda"].operation_s, rel=0.01)

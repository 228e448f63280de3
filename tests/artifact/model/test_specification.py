"""The specification of a layer: its tensors, what a head or a neuron owns of them, and the names of layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.tiny import FORMS, tiny_architecture

from hmc.artifact.model.architecture import tensor_shapes
from hmc.artifact.model.ffn import STACKS
from hmc.artifact.model.layers import layer_of

ARCH = tiny_architecture()


def test_a_head_owns_rows_of_three_projections_and_columns_of_the_output() -> None:
    cross = ARCH.attention("cross", 1)
    prefix = "decoder.layers.1.encoder_attn"
    rows = [(f"{prefix}.{letter}_proj.{part}", 0) for letter in "qkv" for part in ("weight", "bias")]
    assert cross.owned == (*rows, (f"{prefix}.out_proj.weight", 1))
    assert cross.features([1, 3]).tolist() == [*range(16, 32), *range(48, 64)]
    assert cross.norm.tensors == (f"{prefix}_layer_norm.weight", f"{prefix}_layer_norm.bias")


def test_a_neuron_owns_a_row_and_a_column() -> None:
    feed = ARCH.feed_forward("encoder", 0)
    prefix = "encoder.layers.0"
    assert feed.owned == ((f"{prefix}.fc1.weight", 0), (f"{prefix}.fc1.bias", 0), (f"{prefix}.fc2.weight", 1))
    assert feed.features([2, 5]).tolist() == [2, 5]
    assert feed.features([]).dtype == np.int64


def test_without_units_only_the_bias_of_the_output_and_the_norm_are_left() -> None:
    feed = ARCH.feed_forward("decoder", 1)
    assert feed.shapes(0, 32) == {feed.output.bias: (32,), feed.norm.weight: (32,), feed.norm.bias: (32,)}


@pytest.mark.parametrize("form", FORMS)
def test_every_tensor_of_a_layer_is_in_one_sublayer(form: str) -> None:
    changes: dict[str, Any] = FORMS[form]
    arch = tiny_architecture(**changes)
    shapes = tensor_shapes(arch, arch.full_layout())
    found: dict[str, tuple[int, ...]] = {}
    for stack in STACKS:
        for layer in range(arch.depth(stack)):
            for sublayer in arch.sublayers(stack, layer):
                units = arch.ffn_dim if sublayer.unit == 1 else arch.heads
                assert not found.keys() & sublayer.shapes(units, arch.d_model).keys()
                found |= sublayer.shapes(units, arch.d_model)
    assert found == {name: shape for name, shape in shapes.items() if layer_of(name)}
    ends = [norm.weight for stack in STACKS if (norm := arch.stack_norm(stack))]
    assert all(name in shapes and layer_of(name) is None for name in ends)
    assert len(ends) == (2 if arch.stack_norms else 0)


def test_the_name_of_a_tensor_tells_its_layer() -> None:
    assert layer_of("decoder.layers.11.encoder_attn.q_proj.bias") == ("decoder", 11, "encoder_attn.q_proj.bias")
    assert layer_of("shared.weight") is None
    assert layer_of("encoder.layer_norm.weight") is None

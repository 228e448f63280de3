"""Blocks of memory, with this machine's memory as the device: tensors in them, and when they are freed."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmc.artifact.errors import FailedPreconditionError
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.memory.account import DeviceMemory, MemoryBudget
from hmc.engine.runtime.memory.blocks import ALIGNMENT, DeviceBlock

TYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64, 10: np.float16, 11: np.float64}


@pytest.fixture
def memory() -> DeviceMemory:
    return DeviceMemory(Device("cpu"))


@given(st.sampled_from(sorted(TYPES)), st.lists(st.integers(0, 5), max_size=4), st.integers(0, 3))
def test_a_tensor_is_a_view_of_the_block(element_type: int, shape: list[int], place: int) -> None:
    dtype: Any = TYPES[element_type]
    content = np.random.default_rng(0).integers(0, 100, size=shape).astype(dtype)
    offset = place * ALIGNMENT
    block = DeviceBlock(DeviceMemory(Device("cpu")), offset + content.nbytes, "test")
    tensor = block.tensor(tuple(shape), element_type, offset)
    assert not tensor.numpy().any()
    block.write(content, offset)
    np.testing.assert_array_equal(tensor.numpy(), content)
    assert tensor.numpy().dtype == dtype
    assert block.address % ALIGNMENT == 0
    assert content.size == 0 or tensor.data_ptr() == block.address + offset
    np.testing.assert_array_equal(block.read(content.nbytes, offset), content.reshape(-1).view(np.uint8))


def test_the_block_lives_as_long_as_a_tensor_in_it(memory: DeviceMemory) -> None:
    block = DeviceBlock(memory, 4000, "test")
    block.write(np.arange(1000, dtype=np.float32))
    tensors = [block.tensor((500,), 1), block.tensor((500,), 16, 2000)]
    assert memory.reserved == 4000
    del block
    gc.collect()
    tensors.pop()
    assert memory.reserved == 4000
    assert tensors[0].numpy()[-1] == 499.0
    tensors.pop()
    gc.collect()
    assert memory.reserved == 0


@pytest.mark.parametrize(("shape", "offset"), [((101,), 0), ((100,), 4), ((1,), -4)])
def test_a_tensor_outside_of_the_block_is_refused(memory: DeviceMemory, shape: tuple[int, ...], offset: int) -> None:
    block = DeviceBlock(memory, 400, "test")
    with pytest.raises(ValueError, match="does not fit into a block of 400 bytes"):
        block.tensor(shape, 1, offset)


def test_a_block_takes_a_reservation_over(memory: DeviceMemory) -> None:
    reserved = memory.reserve(1000, "test")
    block = DeviceBlock(memory, 1000, "test", reserved)
    assert memory.reserved == 1000
    del block
    gc.collect()
    assert memory.reserved == 0


def test_a_block_that_does_not_fit_is_refused(memory: DeviceMemory) -> None:
    memory.limit(MemoryBudget(100))
    with pytest.raises(FailedPreconditionError, match="too little memory for test"):
        DeviceBlock(memory, 101, "test")
    assert memory.reserved == 0

"""Small arrays of a device and their mirror on the host, with this machine's memory as the device."""

from __future__ import annotations

import numpy as np
import pytest

from hmc.engine.runtime.device import Device
from hmc.engine.runtime.memory.account import DeviceMemory, LevelMemory
from hmc.engine.runtime.memory.blocks import ALIGNMENT
from hmc.engine.runtime.memory.mirrored import MirroredArrays, arrangement_bytes
from hmc.engine.runtime.memory.views import DeviceArray, bytes_at, copy_into_larger, fill

STEP = {"tokens": ("tensor(int32)", (5,)), "bias": ("tensor(float)", (5, 2, 30)), "totals": ("tensor(double)", (3,))}


def arrays(size: int) -> MirroredArrays:
    return MirroredArrays(LevelMemory(DeviceMemory(Device("cpu")), "h12"), size, "steps")


def test_arrays_lie_apart_at_addresses_that_stay() -> None:
    held = arrays(arrangement_bytes(STEP))
    views = held.arrange(STEP)
    assert held.arrange(STEP) == views
    assert [view.address % ALIGNMENT for view in views.values()] == [0, 0, 0]
    for n, (name, array) in enumerate(held.host.items()):
        array[...] = n + 1
        assert array.shape == STEP[name][1]
    held.write()
    held.read("totals")
    assert [float(array.min()) for array in held.host.values()] == [1.0, 2.0, 3.0]
    assert bytes_at(views["totals"].address, 24).view(np.float64).tolist() == [3.0] * 3


def test_a_larger_arrangement_is_refused() -> None:
    held = arrays(arrangement_bytes(STEP))
    with pytest.raises(ValueError, match="do not fit into a block"):
        held.arrange({**STEP, "more": ("tensor(uint8)", (1,))})


def test_an_array_goes_into_a_larger_one() -> None:
    held = arrays(1 << 14)
    views = held.arrange({"small": ("tensor(float)", (2, 3, 4, 5)), "large": ("tensor(float)", (4, 3, 6, 5))})
    held.host["small"][...] = np.arange(120).reshape(2, 3, 4, 5)
    fill(views["large"], -1.0)
    copy_into_larger(views["small"], views["large"].slots(2), 2)
    large = held.host["large"]
    np.testing.assert_array_equal(large[:2, :, :4], held.host["small"])
    assert (large[2:] == -1).all()
    assert (large[:2, :, 4:] == -1).all()


def test_slots_of_a_view() -> None:
    view = DeviceArray(Device("cpu"), "tensor(float16)", (8, 3), 1000)
    assert view.slots(2, 5) == DeviceArray(Device("cpu"), "tensor(float16)", (2, 3), 1000 + 5 * 6)
    assert view.bytes == 48

"""One copy of the weights on a device, for all graphs, levels and bundles of this process that have the same tensor.

ONNX Runtime copies every weight of a session to the device, once for each session. Here a weight is put there once, and
sessions get it by `SessionOptions.add_initializer`. It leaves the device with the last session that uses it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import numpy as np
from onnxruntime import OrtValue

from hmc.artifact.bundle.external_data import StoredTensor
from hmc.artifact.element_types import ELEMENT_TYPES
from hmc.engine.runtime import capture_lock
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.memory.account import DeviceMemory, memory_of
from hmc.engine.runtime.memory.blocks import DeviceBlock

FLOATS = tuple(kind.number for kind in ELEMENT_TYPES if kind.is_float and kind.bits <= 32)
"""Element types of weights that are shared, as numbers in ONNX. Others are shapes and tables, which operators on the
host may read."""

WeightKey = tuple[str, int, int, tuple[int, ...]]
"""Digest of the file, offset in it, element type, shape."""


class SharedWeight:
    """A weight on a device, which sessions may use as long as anything refers to it."""

    def __init__(self, name: str, block: DeviceBlock, tensor: StoredTensor) -> None:
        """name: the same for the same tensor, in any bundle."""
        self.name = name
        self.size = block.size
        self.value: OrtValue = block.tensor(tensor.shape, tensor.element_type)


class WeightStore:
    """The weights on one device. Thread-safe: levels may load at the same time."""

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory = memory
        self._lock = threading.Lock()
        self._weights: weakref.WeakValueDictionary[WeightKey, SharedWeight] = weakref.WeakValueDictionary()

    def load(
        self, bundle: Path, tensors: Iterable[StoredTensor], digest_of: Callable[[str], str], level: str
    ) -> dict[WeightKey, SharedWeight]:
        """Puts the weights on the device that are not there yet.

        tensors: stored in files of `bundle`, whose contents were checked. digest_of: returns the sha256 of a file.
        level: its name, for errors. Raises FailedPreconditionError if they do not fit on the device together, OSError
        if a file cannot be read, and ValueError if it is too short.
        """
        wanted = {key_of(t, digest_of(t.location)): t for t in tensors if shareable(t)}
        with capture_lock.shared(self.memory.device), self._lock:
            resident = {key: weight for key in wanted if (weight := self._weights.get(key)) is not None}
            missing = {key: tensor for key, tensor in wanted.items() if key not in resident}
            self.memory.check(sum(t.raw.length for t in missing.values()), f"weights of level {level}")
            for key, tensor in missing.items():
                self._weights[key] = resident[key] = self._put(bundle, key, tensor, level)
        return resident

    def _put(self, bundle: Path, key: WeightKey, tensor: StoredTensor, level: str) -> SharedWeight:
        span = tensor.raw
        content = np.fromfile(bundle / tensor.location, np.uint8, span.length, offset=span.offset)
        if content.nbytes != span.length:
            raise ValueError(f"{tensor.location} has {content.nbytes} bytes from {span.offset} on, not {span.length}")
        block = DeviceBlock(self.memory, span.length, f"weights of level {level}")
        block.write(content)
        digest, offset, element_type, shape = key
        name = f"{self.memory.device}/{digest}+{offset}:{element_type}:{'x'.join(map(str, shape))}"
        return SharedWeight(name, block, tensor)


def shareable(tensor: StoredTensor) -> bool:
    """Whether sessions can share the tensor. Small ones are inside of the graph files, and each session has its own."""
    return tensor.element_type in FLOATS and tensor.uses > 0


def key_of(tensor: StoredTensor, digest: str) -> WeightKey:
    """The key of a weight: tensors with the same key are the same weight. digest: sha256 of the tensor's file."""
    return digest, tensor.raw.offset, tensor.element_type, tensor.shape


@cache
def _store_of(kind: str, index: int) -> WeightStore:
    return WeightStore(memory_of(Device(kind, index)))


_making = threading.Lock()


def weights_on(device: Device) -> WeightStore:
    """The weights on a device, for this process; the same object each time."""
    with _making:
        return _store_of(device.kind, device.index)

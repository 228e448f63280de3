"""Decoder caches that stay on the device (CUDA): graphs with a `parents` input gather rows there; the host holds only
tokens, lengths and candidates. The same sentences, order and operations as `HostCaches`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnxruntime import OrtValue

from hmc.serving.buffers import TYPES, Rows, round_up
from hmc.serving.caches import ROUND_SOURCE, ROUND_TARGET
from hmc.serving.sessions import Arrays, Device
from hmc.serving.shortlists import Shortlists


class DeviceCaches:
    """Sentences 0 … N-1 with k rows each. `reorder`, `keep` and `add` only compose the next step's `parents`."""

    def __init__(
        self, session: Any, device: Device, head_dim: int, beam: int, shortlists: Shortlists | None = None
    ) -> None:
        """shortlists: none; levels for CUDA are not made with them."""
        assert shortlists is None
        self.session, self.device, self.beam = session, device, beam
        self.dim, self.room = head_dim, ROUND_TARGET
        self.inputs = {i.name: i for i in session.get_inputs()}
        self.types: dict[str, Any] = {
            n: TYPES[i.type] for n, i in self.inputs.items() if n.startswith(("past_", "cross_"))
        }
        self.heads = {n: self.inputs[n].shape[1] for n in self.types}
        self.host_cross: Arrays = {
            n: np.zeros((0, self.heads[n], 0, self.dim), self.types[n]) for n in self.types if n.startswith("cross_")
        }
        self.source_lengths = np.zeros(0, np.int32)
        self.parents: Rows = np.zeros(0, np.int64)
        self.own: dict[str, OrtValue] = {}
        self.cross: dict[str, OrtValue] = {}

    def add(self, cross: Arrays, lengths: npt.NDArray[np.int32], lists: Sequence[Rows] = ()) -> None:  # noqa: ARG002
        """Appends sentences with their cross keys and values `[B, H_l, S, D]`."""
        room = max(
            round_up(int(lengths.max()), ROUND_SOURCE), max((v.shape[2] for v in self.host_cross.values()), default=0)
        )
        self.host_cross = {
            n: np.concatenate([_padded(old, room), _padded(cross[n], room)]) for n, old in self.host_cross.items()
        }
        self.source_lengths = np.concatenate([self.source_lengths, lengths])
        # New rows have cached nothing, so any row's past will do for them.
        self.parents = np.concatenate([self.parents, np.zeros(len(lengths) * self.beam, np.int64)])
        self.cross = {}

    def keep(self, order: Sequence[int]) -> None:
        """Sentence i becomes what sentence order[i] was; the rest is dropped."""
        index = np.asarray(order, np.int64)
        self.host_cross = {n: v[index] for n, v in self.host_cross.items()}
        self.source_lengths = self.source_lengths[index]
        self.parents = self.parents.reshape(-1, self.beam)[index].reshape(-1)
        self.cross = {}

    def reorder(self, parents: Rows) -> None:
        """Row r continues row parents[r]."""
        self.parents = self.parents[parents]

    def run(self, step: Arrays) -> Arrays:
        """One decoder step of all rows; see `HostCaches.run`."""
        rows, longest = len(step["tokens"]), int(step["lengths"].max()) + 1
        self._prepare(rows, longest)
        binding = self.session.io_binding()
        host = {
            "wanted": np.zeros(rows, np.int64),
            **step,
            "total_length": np.array([longest], np.int32),
            "source_lengths": self.source_lengths,
            "parents": self.parents,
        }
        for name in self.inputs.keys() & host.keys():
            binding.bind_cpu_input(name, np.ascontiguousarray(host[name]))
        for name, value in {**self.cross, **self.own}.items():
            binding.bind_ortvalue_input(name, value)
        presents = {n: self._empty((rows, self.heads[n], self.room, self.dim), self.types[n]) for n in self.own}
        for name, value in presents.items():
            binding.bind_ortvalue_output(name.replace("past_", "present_"), value)
        names = [o.name for o in self.session.get_outputs() if not o.name.startswith("present_")]
        for name in names:
            binding.bind_output(name, "cpu")
        self.session.run_with_iobinding(binding)
        self.own, self.parents = presents, np.arange(rows, dtype=np.int64)
        outputs = binding.get_outputs()[len(presents) :]  # in the order they were bound
        return {name: value.numpy() for name, value in zip(names, outputs, strict=True)}

    def _prepare(self, rows: int, longest: int) -> None:
        if not self.cross:
            self.cross = {
                n: OrtValue.ortvalue_from_numpy(v, self.device.kind, self.device.index)
                for n, v in self.host_cross.items()
            }
        names = [n for n in self.types if n.startswith("past_")]
        if longest > self.room or not self.own:
            old = {n: v.numpy() for n, v in self.own.items()}
            self.room = max(ROUND_TARGET, round_up(longest, ROUND_TARGET))
            past_rows = len(next(iter(old.values()))) if old else rows
            fresh = {n: np.zeros((past_rows, self.heads[n], self.room, self.dim), self.types[n]) for n in names}
            for name, value in old.items():
                fresh[name][:, :, : value.shape[2]] = value
            self.own = {
                n: OrtValue.ortvalue_from_numpy(v, self.device.kind, self.device.index) for n, v in fresh.items()
            }

    def _empty(self, shape: tuple[int, ...], dtype: Any) -> OrtValue:
        return OrtValue.ortvalue_from_shape_and_type(shape, dtype, self.device.kind, self.device.index)


def _padded(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    """`[B, H, S, D]` → `[B, H, length, D]`, zeros behind."""
    return np.pad(array, ((0, 0), (0, 0), (0, length - array.shape[2]), (0, 0)))

"""Operations that a program asked of CUDA, and their sums: launches, copies and waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3
"""Directions of a copy, as in `cudaMemcpyKind`."""
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
BLOCKING_COPIES = ("cudaMemcpy", "cudaMemcpyFromSymbol")
"""Copies that return when they have ended: each is a wait too."""
LARGE = 1 << 21
"""Bytes from which on a copy is large: caches are, inputs and outputs of a step are not."""


@dataclass(frozen=True)
class Operation:
    """One call of a library of CUDA's."""

    kind: str
    """`kernel`, `gemm` (any call of cuBLAS and cuDNN), or the function of the CUDA runtime."""
    name: str
    size: int
    """Bytes of a copy or an allocation."""
    direction: int
    """Of a copy; -1 for anything else."""

    @classmethod
    def read(cls, line: str) -> Operation:
        """Parses a line of the stand-ins: kind, name, grid, block, bytes, direction, stream."""
        kind, name, _, _, size, direction, _ = line.split("\t")
        return cls(kind, name, int(size), int(direction))

    @property
    def is_copy(self) -> bool:
        """Whether it copies between host and device."""
        return self.kind.startswith("cudaMemcpy") and self.direction in (TO_DEVICE, TO_HOST)

    @property
    def is_launch(self) -> bool:
        """Whether it puts work on the device: kernels, library calls that compute, copies and fills inside the device,
        captured graphs. Calls of cuBLAS and cuDNN that only prepare something have their name in parentheses."""
        if self.kind == "gemm":
            return not self.name.startswith("(")
        on_device = self.kind.startswith("cudaMemcpy") and self.direction == ON_DEVICE
        return on_device or self.kind in ("kernel", "cudaGraphLaunch", "cudaMemset", "cudaMemsetAsync")


@dataclass(frozen=True)
class Sums:
    """Sums over some operations."""

    launches: int
    copies_to_device: int
    bytes_to_device: int
    copies_to_host: int
    bytes_to_host: int
    waits: int
    large_bytes: int
    """Bytes of large copies between host and device, both ways."""

    @classmethod
    def of(cls, operations: Iterable[Operation]) -> Sums:
        """Counts operations."""
        every = list(operations)
        copies = [o for o in every if o.is_copy]
        down, up = ([o.size for o in copies if o.direction == way] for way in (TO_DEVICE, TO_HOST))
        waits = sum(o.kind in WAITS or o.kind in BLOCKING_COPIES for o in every)
        large = sum(o.size for o in copies if o.size >= LARGE)
        return cls(sum(o.is_launch for o in every), len(down), sum(down), len(up), sum(up), waits, large)

    @property
    def bytes_across(self) -> int:
        """Bytes that crossed between host and device."""
        return self.bytes_to_device + self.bytes_to_host

    def to_json(self) -> dict[str, Any]:
        """The sums as values for JSON."""
        return asdict(self)


def by_kind(operations: Iterable[Operation]) -> dict[str, int]:
    """Kind of operation → how many, most frequent first. Library calls that only prepare something are left out."""
    counted = Counter(o.kind for o in operations if o.kind != "gemm" or o.is_launch)
    return dict(counted.most_common())

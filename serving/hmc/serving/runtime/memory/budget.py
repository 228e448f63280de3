"""How users write an amount of device memory: `8GiB`, `500MB`, a number of bytes, or a share such as `80%`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hmc.artifact.errors import InvalidRequestError

UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
"""Unit in lower case → its bytes."""


@dataclass(frozen=True)
class Budget:
    """A number of bytes, or a share of a device's free memory."""

    size: int | None = None
    """Bytes; None: `share` counts."""
    share: float = 1.0
    """Share of the memory that was free when this process began to use the device, above 0 and at most 1."""

    def bytes_of(self, free: int | None) -> int | None:
        """The bytes of this budget. free: bytes of the device that were free; None: unknown, as is a share of it."""
        if self.size is not None:
            return self.size
        return None if free is None else int(free * self.share)


DEFAULT_BUDGET = Budget(share=0.8)
"""The rest is for what ONNX Runtime and CUDA's libraries allocate: results between operators, captured graphs,
workspaces, and the code of kernels."""


def parse_budget(text: str, name: str = "gpu_memory") -> Budget:
    """Reads a budget. name: of the setting, for errors. Raises InvalidRequestError that lists the forms."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%|[a-zA-Z]*)\s*", text)
    if found is not None:
        number, unit = float(found[1]), found[2].lower()
        if unit == "%" and 0 < number <= 100:
            return Budget(share=number / 100)
        if unit in UNITS and number * UNITS[unit] >= 1:
            return Budget(int(number * UNITS[unit]))
    raise InvalidRequestError(
        f"{name} {text!r}: write bytes such as 8GiB, 500MB or 1000000000, or a share of the free memory such as 80%"
    )


def mebibytes(size: int) -> str:
    """`1234.5 MiB`."""
    return f"{size / 2**20:.1f} MiB"

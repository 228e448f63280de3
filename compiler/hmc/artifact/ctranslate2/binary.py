"""`model.bin` of CTranslate2: named arrays and aliases of them. Nothing in the file is trusted.

Numbers are little endian. A string is its length with the final zero (16 bits), and its bytes. The file is: version (32
bits), name of the specification, its revision (32), number of arrays (32); for each array its name, rank (8), sizes (32
each), type (8), number of bytes (32) and bytes; number of aliases (32); for each alias its name and that of an array.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.artifact.errors import HmcError
from hmc.artifact.git_lfs import refuse_pointer

Stored = npt.NDArray[Any]
VERSION = 6
"""Of the file's layout: that of CTranslate2 3 and 4."""
TYPES: tuple[tuple[str, str], ...] = (
    ("float32", "<f4"), ("int8", "<i1"), ("int16", "<i2"), ("int32", "<i4"), ("float16", "<f2"), ("bfloat16", "<u2"),
)  # fmt: skip
"""Name and storage of each type, by its number."""
LONGEST_RANK = 4
AGAIN = "copy or download it again"


@dataclass(frozen=True)
class Variable:
    """One array."""

    kind: str
    """float32, int8, int16, int32, float16 or bfloat16."""
    stored: Stored
    """As it is in the file; bfloat16 as its 16 bits."""

    def floats(self) -> npt.NDArray[np.float32]:
        """The values in 32 bits. Integers become floats of the same value, without any scale."""
        if self.kind == "bfloat16":
            return (self.stored.astype(np.uint32) << 16).view(np.float32)
        return self.stored.astype(np.float32)


@dataclass(frozen=True)
class Binary:
    """The content of the file."""

    spec: str
    revision: int
    variables: dict[str, Variable]
    """Also under its aliases. An alias of a weight that has a scale is also one of the scale."""


def read_binary(path: Path) -> Binary:
    """Reads a file, which stays mapped while an array of it is used.

    Raises HmcError, which names the file and the problem, for a file that is cut short, has absurd sizes or bytes left
    over, or has another version. No size in the file makes this allocate memory.
    """
    refuse_pointer(path, path.name)
    with path.open("rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # an empty file
            raise HmcError(f"{path.name} is empty: {AGAIN}") from error
    cursor = _Cursor(path.name, memoryview(mapped))
    version = cursor.number("<I")
    if version != VERSION:
        raise HmcError(
            f"{path.name} has version {version} and not {VERSION}: convert the model again with CTranslate2 3 or 4"
        )
    spec = cursor.string()
    revision = cursor.number("<I")
    variables: dict[str, Variable] = {}
    for _ in range(cursor.number("<I")):
        name = cursor.string()
        if name in variables:
            raise HmcError(f"{path.name} holds {name} twice: {AGAIN}")
        variables[name] = cursor.variable(name)
    _add_aliases(cursor, variables)
    if cursor.remaining:
        raise HmcError(f"{path.name} has {cursor.remaining} bytes after its end: {AGAIN}")
    return Binary(spec, revision, variables)


def _add_aliases(cursor: _Cursor, variables: dict[str, Variable]) -> None:
    aliases: dict[str, Variable] = {}
    for _ in range(cursor.number("<I")):
        alias = cursor.string()
        name = cursor.string()
        if alias in variables or alias in aliases or name not in variables:
            raise HmcError(f"{cursor.file}: {alias} stands for {name}, which is no other array: {AGAIN}")
        aliases[alias] = variables[name]
        if (scale := f"{name}_scale") in variables:
            aliases[f"{alias}_scale"] = variables[scale]
    variables.update(aliases)


class _Cursor:
    """Reads values from bytes, from the first to the last."""

    def __init__(self, file: str, content: memoryview) -> None:
        self.file = file
        self._content = content
        self._at = 0

    @property
    def remaining(self) -> int:
        """Bytes that were not read."""
        return len(self._content) - self._at

    def number(self, form: str) -> int:
        """A whole number; its type is a format of `struct`."""
        return int(struct.unpack(form, self._take(struct.calcsize(form), "a number"))[0])

    def string(self) -> str:
        """A string."""
        raw = bytes(self._take(self.number("<H"), "a name"))
        if not raw.endswith(b"\0") or not raw[:-1].isascii():
            raise HmcError(f"{self.file} has no name where one must be (byte {self._at}): {AGAIN}")
        return raw[:-1].decode("ascii")

    def variable(self, name: str) -> Variable:
        """An array, after its name."""
        rank = self.number("<B")
        if rank > LONGEST_RANK:
            raise HmcError(f"{self.file}: {name} has {rank} dimensions, more than {LONGEST_RANK}: {AGAIN}")
        shape = tuple(self.number("<I") for _ in range(rank))
        number = self.number("<B")
        size = self.number("<I")
        if number >= len(TYPES):
            raise HmcError(f"{self.file}: {name} has an unknown type ({number}); convert the model again")
        kind, storage = TYPES[number]
        dtype = np.dtype(storage)
        if prod(shape) * dtype.itemsize != size:
            raise HmcError(f"{self.file}: {name} has the shape {list(shape)} of {kind}, and {size} bytes: {AGAIN}")
        return Variable(kind, np.frombuffer(self._take(size, name), dtype).reshape(shape))

    def _take(self, size: int, what: str) -> memoryview:
        if size > self.remaining:
            raise HmcError(f"{self.file} ends within {what}: {size} bytes are missing from byte {self._at} on: {AGAIN}")
        self._at += size
        return self._content[self._at - size : self._at]

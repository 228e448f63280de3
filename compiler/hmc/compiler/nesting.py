"""Nested levels: their step programs read the weights of the widest one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hmc.artifact.bundle.manifest import WEIGHTS, Level
from hmc.artifact.program.operations import Program, TensorPlace, program_json, program_path, read_program
from hmc.artifact.program.tensors import stored_tensor


def share_weights(bundle: Path, levels: Sequence[Level]) -> list[Level]:
    """Writes programs anew so that narrower levels read the weights of a wider level, if their weights are its first
    rows and columns. An executor that has the wider level open needs no weights for the narrower one.

    Weights are compared number by number, so it does not matter which checkpoints levels are from. The graphs keep
    files of their own. Returns the levels with the digests of their new programs.
    """
    widest_first = sorted(levels, key=lambda level: -level.parameters)
    programs = {
        level.name: read_program(bundle, level.name)
        for level in widest_first
        if program_path(level.name) in level.files
    }
    shared = {level.name: level for level in levels}
    wider: list[Program] = []
    for name, program in programs.items():
        places = dict(_in_wider(bundle, program, wider))
        wider.append(program)
        if places:
            content = program_json(program.model_copy(update={"tensors": program.tensors | places}))
            shared[name] = _rewritten(bundle, shared[name], content)
    return [shared[level.name] for level in levels]


def _in_wider(bundle: Path, program: Program, wider: Sequence[Program]) -> Iterator[tuple[str, TensorPlace]]:
    """The places in weights of wider levels, the widest first, that hold the same numbers."""
    for name, own in program.tensors.items():
        if not own.file.startswith(f"{WEIGHTS}/"):
            continue
        for place in (other.tensors[name] for other in wider if name in other.tensors):
            corner = _corner(place, own)
            if corner is None:
                continue
            if corner == own:
                break
            if _equal(bundle, _beginning(corner), _beginning(own)) and _equal(bundle, corner, own):
                yield name, corner
                break


def _corner(place: TensorPlace, own: TensorPlace) -> TensorPlace | None:
    """The first rows and columns of what lies at a place, as many as `own` has. None: there are not so many."""
    if place.type != own.type or len(place.shape) != len(own.shape) or not place.file.startswith(f"{WEIGHTS}/"):
        return None
    if any(size < wanted for size, wanted in zip(place.shape, own.shape, strict=True)):
        return None
    leading = place.leading
    if own.shape[1:] != place.shape[1:] and leading is None:
        leading = place.shape[1]
    return place.model_copy(update={"shape": own.shape, "leading": leading})


def _beginning(place: TensorPlace) -> TensorPlace:
    """The first row, or of a vector the first number: where it differs, nothing else needs to be read."""
    return place.model_copy(update={"shape": (1, *place.shape[1:])})


def _equal(bundle: Path, one: TensorPlace, other: TensorPlace) -> bool:
    return np.array_equal(stored_tensor(bundle, one), stored_tensor(bundle, other))


def _rewritten(bundle: Path, level: Level, content: bytes) -> Level:
    path = program_path(level.name)
    size = (bundle / path).stat().st_size
    (bundle / path).write_bytes(content)
    files = level.files | {path: hashlib.sha256(content).hexdigest()}
    return level.model_copy(update={"files": files, "bytes": level.bytes + len(content) - size})

"""Marian's tensors under the names and in the shapes of a checkpoint; and the zip archives that releases come in.

Archives are from elsewhere. They are unpacked into a folder that is removed afterwards.
"""

from __future__ import annotations

import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path, PurePosixPath, PureWindowsPath
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.artifact.checkpoint.weights import Tensors, fitted
from hmc.artifact.errors import InvalidArtifactError
from hmc.artifact.git_lfs import why
from hmc.artifact.marian.weights import NEVER
from hmc.artifact.model.architecture import (
    LOGITS_BIAS,
    OUTPUT,
    SOURCE_EMBEDDING,
    TARGET_EMBEDDING,
    Architecture,
    tensor_shapes,
)
from hmc.artifact.model.ffn import STACKS
from hmc.artifact.model.layers import NormSpec
from hmc.artifact.npz.options import OPTIONS

Arrays = Mapping[str, npt.NDArray[Any]]
JOINT = "Wemb"
SIDES = ("encoder_Wemb", "decoder_Wemb")
"""The embedding of both sides, or those of sources and targets."""
OUTPUT_BIAS = "decoder_ff_logit_out_b"
OUTPUT_WEIGHTS = ("decoder_ff_logit_out_Wt", "decoder_ff_logit_out_W")
"""The output projection where it is not an embedding: `[V, d]`, or turned."""
ENCODER_LAYER = (("self", "qkvo", "Wo"), ("ffn", "12", "ffn"))
DECODER_LAYER = (ENCODER_LAYER[0], ("context", "qkvo", "Wo"), ENCODER_LAYER[1])
"""For each sub-layer its name, the endings of its matrices, and a part of the name of its norm."""
MOST_FILES = 1000
MOST_BYTES = 64 * 2**30
"""Bounds of an archive: files, and bytes of all files when unpacked."""
RATIO = 200
SMALL = 64 * 2**20
"""Most bytes that one packed byte may become, for files above SMALL. Weights hardly shrink when they are packed."""
FIX = "Download it again from where it was published, or unpack it yourself and give the folder."


def embeddings_of(arrays: Arrays) -> tuple[dict[str, npt.NDArray[Any]], list[str]]:
    """The embeddings and the output matrix, under the names of a checkpoint, each `[V, d]`. Returns problems too."""
    matrices: dict[str, npt.NDArray[Any]] = {}
    if JOINT in arrays:
        matrices[TARGET_EMBEDDING] = arrays[JOINT]
    elif all(name in arrays for name in SIDES):
        matrices[SOURCE_EMBEDDING], matrices[TARGET_EMBEDDING] = (arrays[name] for name in SIDES)
    else:
        return {}, [f"tensor {JOINT} is missing, and so is {' or '.join(n for n in SIDES if n not in arrays)}"]
    own = next((name for name in OUTPUT_WEIGHTS if name in arrays), None)
    if own is not None:
        matrices[OUTPUT] = arrays[own].T if own.endswith("_W") else arrays[own]
    return matrices, [f"tensor of {name} must be a matrix" for name, value in matrices.items() if value.ndim != 2]


def checkpoint_tensors(arrays: Arrays, arch: Architecture, places: tuple[int, int]) -> tuple[Tensors, list[str]]:
    """The fp32 tensors of the full layout, and every problem: missing, unknown or misshapen tensors.

    places: where pad's row is put into the embedding of sources and of targets. Its embedding is zero, from which
    Marian's decoder starts, and it can never be chosen.
    """
    embeddings, problems = embeddings_of(arrays)
    if problems:
        return {}, problems
    named = dict(_names(arch))
    used = {JOINT, *SIDES, *OUTPUT_WEIGHTS, OUTPUT_BIAS, OPTIONS, *named.values()}
    problems = [f"tensor {name} does not belong to this model" for name in arrays if name not in used]
    matrices = {name for name, shape in tensor_shapes(arch, arch.full_layout()).items() if len(shape) == 2}
    tensors_by_name: dict[str, npt.NDArray[Any]] = {}
    for ours, theirs in named.items():
        if theirs in arrays:
            tensors_by_name[ours] = arrays[theirs].T if ours in matrices else arrays[theirs].reshape(-1)
    for name, matrix in embeddings.items():
        tensors_by_name[name] = np.insert(matrix, places[0 if name == SOURCE_EMBEDDING else 1], 0, axis=0)
    bias = arrays.get(OUTPUT_BIAS, np.zeros(len(embeddings[TARGET_EMBEDDING]), np.float32)).reshape(-1)
    tensors_by_name[LOGITS_BIAS] = np.insert(bias, places[1], NEVER)
    tensors, wrong = fitted(tensors_by_name, arch, file_names=named)
    return tensors, problems + wrong


def _names(arch: Architecture) -> Iterator[tuple[str, str]]:
    """Name in a checkpoint, name in Marian: of all tensors but embeddings and the output."""
    suffix = "_pre" if arch.pre_norm else ""
    for stack in STACKS:
        sublayers = ENCODER_LAYER if stack == "encoder" else DECODER_LAYER
        for layer in range(arch.depth(stack)):
            prefix = f"{stack}_l{layer + 1}"
            for ours, (theirs, marks, norm) in zip(arch.sublayers(stack, layer), sublayers, strict=True):
                for linear, mark in zip((*ours.inputs, ours.output), marks, strict=True):
                    yield linear.weight, f"{prefix}_{theirs}_W{mark}"
                    yield linear.bias, f"{prefix}_{theirs}_b{mark}"
                yield from _norm(ours.norm, f"{prefix}_{theirs}_{norm}", suffix)
        if top := arch.stack_norm(stack):
            yield from _norm(top, f"{stack}_top", "")


def _norm(ours: NormSpec, theirs: str, suffix: str) -> Iterator[tuple[str, str]]:
    yield ours.weight, f"{theirs}_ln_scale{suffix}"
    yield ours.bias, f"{theirs}_ln_bias{suffix}"


@contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    """Yields a temporary folder with the files of a zip archive.

    Raises InvalidArtifactError, before anything is written, for files that would lie outside the folder, links,
    passwords and archives that grow beyond any model; and for a damaged one. OSError if the disk is full.
    """
    what = f"archive {archive}"
    try:
        with zipfile.ZipFile(archive) as packed, TemporaryDirectory(prefix="hmc-import-") as folder:
            if problems := member_problems(packed):
                raise InvalidArtifactError(what, problems, FIX)
            packed.extractall(folder)
            yield Path(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise InvalidArtifactError(what, [f"it {why(archive, f'is no whole zip archive: {error}')}"], FIX) from error


def member_problems(packed: zipfile.ZipFile) -> list[str]:
    """Reasons not to unpack an archive; empty if there are none. Nothing is unpacked."""
    members = packed.infolist()
    total = sum(member.file_size for member in members)
    problems = []
    if len(members) > MOST_FILES:
        problems.append(f"it holds {len(members)} files, more than {MOST_FILES}")
    if total > MOST_BYTES:
        problems.append(f"its files take {total:,} bytes, more than {MOST_BYTES:,}")
    names = [member.filename for member in members]
    if len(set(names)) < len(names):
        problems.append("it holds two files of one name")
    return problems + list(chain.from_iterable(map(_member_problems, members)))


def _member_problems(member: zipfile.ZipInfo) -> list[str]:
    name = member.filename
    problems = []
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or PureWindowsPath(name).drive:
        problems.append(f"{name!r} would be written outside the folder")
    if stat.S_ISLNK(member.external_attr >> 16):
        problems.append(f"{name!r} is a link")
    if member.flag_bits & 1:
        problems.append(f"{name!r} needs a password")
    if member.file_size > SMALL and member.file_size > RATIO * member.compress_size:
        problems.append(f"{name!r} would grow from {member.compress_size:,} to {member.file_size:,} bytes")
    return problems

"""Weights in a directory as Transformers writes them: safetensors or PyTorch's files, one or several with an index."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from hmc.artifact.distribution import how_to_install
from hmc.artifact.errors import HmcError
from hmc.artifact.git_lfs import IS_POINTER, is_pointer, why
from hmc.artifact.storage.formats import listed, read_json

Arrays = dict[str, npt.NDArray[Any]]
"""Name → tensor, in the type in which it is stored."""
ReadPickled = Callable[[Path], Arrays]
"""Reads a file of PyTorch, without running code of it. Raises HmcError for one that cannot be read so."""

SAFETENSORS = "model.safetensors"
PICKLED = "pytorch_model.bin"
INDEX = ".index.json"
"""Suffix of the file that says in which of several files each tensor is."""


def weights_at(folder: Path) -> str | None:
    """The name of the file to begin with: the weights, or the index of several files. None if there is neither.

    Safetensors come first, as in Transformers."""
    names = (SAFETENSORS, SAFETENSORS + INDEX, PICKLED, PICKLED + INDEX)
    return next((name for name in names if (folder / name).is_file()), None)


def read_folder(folder: Path, read_pickled: ReadPickled | None = None) -> tuple[Arrays, list[str]]:
    """Every tensor of the directory, and all problems of its files: missing or damaged ones, or a wrong index.

    read_pickled: reads `.bin` files. None: they are a problem.
    """
    name = weights_at(folder)
    if name is None:
        return {}, [f"{SAFETENSORS} is missing, and so is {PICKLED}: copy or download the weights again"]
    if name.endswith(INDEX):
        return _read_several(folder, name, read_pickled)
    return _read_file(folder / name, read_pickled)


def _read_several(folder: Path, index: str, read_pickled: ReadPickled | None) -> tuple[Arrays, list[str]]:
    """The tensors of all files that an index names. Each tensor must be where the index says, and only there."""
    places, problems = _places(folder / index)
    files = sorted(set(places.values()))
    if outside := [name for name in files if Path(name).name != name or name in ("", ".", "..")]:
        return {}, [f"{index}: {listed(outside)} is no plain name of a file beside it"]
    problems += [f"{name} is missing, and {index} names it" for name in files if not (folder / name).is_file()]
    if problems:
        return {}, [f"{problem}; copy or download it again" for problem in problems]
    tensors: Arrays = {}
    for file in files:
        arrays, wrong = _read_file(folder / file, read_pickled)
        problems += wrong
        if wrong:
            continue
        expected = {name for name, place in places.items() if place == file}
        if absent := sorted(expected - arrays.keys()):
            problems.append(f"{index} says that {file} holds {listed(absent)}, and it does not")
        if unknown := sorted(arrays.keys() - expected):
            problems.append(f"{file} holds {listed(unknown)}, and {index} does not say so")
        tensors |= arrays
    return (tensors, []) if not problems else ({}, problems)


def _places(index: Path) -> tuple[dict[str, str], list[str]]:
    """Tensor → name of its file."""
    raw, problems = read_json(index)
    if problems:
        return {}, problems
    places = raw.get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(file, str) for file in places.values()):
        return {}, [f"{index.name} has no weight_map from tensors to files"]
    return places, []


def _read_file(file: Path, read_pickled: ReadPickled | None) -> tuple[Arrays, list[str]]:
    if file.suffix == ".safetensors":
        return _read_safetensors(file)
    if is_pointer(file):
        return {}, [f"{file.name} {IS_POINTER}"]
    if read_pickled is None:
        return {}, [f"{file.name} is not opened here: only `hmc import` reads it, with PyTorch"]
    try:
        return read_pickled(file), []
    except HmcError as error:
        return {}, [str(error)]


def _read_safetensors(file: Path) -> tuple[Arrays, list[str]]:
    with suppress(ImportError):
        import ml_dtypes  # noqa: F401  # registers bfloat16 with NumPy
    try:
        return load_file(file), []
    except (SafetensorError, OSError) as error:
        return {}, [f"{file.name} {why(file, f'is not readable: {error}')}"]
    except TypeError as error:
        return {}, [f"{file.name} holds a type that needs ml_dtypes ({error}): {how_to_install('compile')}"]

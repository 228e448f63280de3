"""Kinds of directories that HMC replaces whole, known by a JSON file. A directory with a file that HMC did not write is
never replaced.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.git_lfs import why

IGNORED = re.compile(r"\.DS_Store|\.nfs[0-9a-f]+")
"""Files that operating systems create. A directory may be replaced although it holds them."""
DIGESTS = "digests.json"
"""The file with the sha256 of every other file of a directory."""
NAMED = 3
"""How many files or tensors a message names."""


@dataclass(frozen=True)
class Format:
    """A kind of directory: how it is recognised, and which files it may hold."""

    name: str
    """For messages, with its article: `a checkpoint`."""
    marker: str
    """Name of a JSON file that every such directory holds."""
    recognises: Callable[[dict[str, Any]], bool]
    """Whether the content of that file is of this format, in any version."""
    files: Callable[[dict[str, Any]], Iterable[str]]
    """Content of that file → paths of the other files that the directory may hold."""
    digests: bool = False
    """Whether such directories have a file DIGESTS."""

    def is_at(self, folder: Path) -> bool:
        """Whether `folder` has this format, by its marker file alone. Its other files may be damaged."""
        return self._marker_content(folder) is not None

    def objection(self, folder: Path) -> str | None:
        """Why `folder` must not be replaced. None: it is empty, or has this format and holds nothing else."""
        content = self._marker_content(folder)
        known = {self.marker, *self.files(content)} if content is not None else {self.marker}
        known |= {DIGESTS} if self.digests else set()
        unknown = _unknown(folder, known)
        if content is not None and not unknown:
            return None
        if not (folder / self.marker).is_file():
            return f"holds other files and no {self.marker} ({listed(unknown)})" if unknown else None
        if content is None:
            _, problems = read_json(folder / self.marker)
            if problems:
                return f"holds a file that is damaged, or does not belong to {self.name}: {problems[0]}"
            return f"holds a {self.marker} that does not belong to {self.name}"
        return f"holds files that do not belong to {self.name}: {listed(unknown)}"

    def _marker_content(self, folder: Path) -> dict[str, Any] | None:
        content, problems = read_json(folder / self.marker)
        return content if not problems and self.recognises(content) else None


def read_json(file: Path) -> tuple[dict[str, Any], list[str]]:
    """The object in a JSON file, and its problems; an empty object for a file that is missing or has a problem."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        return {}, [f"{file.name} cannot be read: {error.strerror}"]
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, a number of thousands of digits, too deep
        return {}, [f"{file.name} {why(file, f'is not JSON: {error}')}"]
    return (raw, []) if isinstance(raw, dict) else ({}, [f"{file.name} must be one JSON object"])


def check_replaceable(out: Path, form: Format, inputs: Iterable[Path] = ()) -> None:
    """Raises InvalidRequestError if replacing `out` would delete one of `inputs`, or a file of another format.

    A directory that is empty, or does not exist, can be replaced.
    """
    target = Path(os.path.realpath(out))
    for file in inputs:
        read = Path(os.path.realpath(file))
        if target == read or target in read.parents:
            raise InvalidRequestError(
                f"{out} would be replaced, and with it the input {file}; choose another directory"
            )
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise InvalidRequestError(f"{out} is a file; choose a directory")
    if os.path.ismount(target):
        raise InvalidRequestError(f"{out} is where a file system is mounted; choose a directory in it")
    if objection := form.objection(target):
        raise InvalidRequestError(
            f"{out} {objection}. It would be deleted: choose another directory, or move it away first"
        )


def _unknown(folder: Path, known: Iterable[str]) -> list[str]:
    """Paths in `folder` that are not `known`. A subdirectory without known files is one path that ends in `/`."""
    files = {PurePosixPath(name) for name in known}
    folders = {parent for file in files for parent in file.parents}
    unknown = []
    for place, below, names in os.walk(folder):
        here = PurePosixPath(Path(place).relative_to(folder).as_posix())
        unknown += [f"{here / name}/" for name in below if here / name not in folders]
        below[:] = [name for name in below if here / name in folders]
        unknown += [str(here / name) for name in names if here / name not in files and not IGNORED.fullmatch(name)]
    return sorted(unknown)


def listed(names: list[str]) -> str:
    """The first NAMED of these names, and how many more there are, for messages."""
    shown = ", ".join(names[:NAMED])
    return f"{shown} and {len(names) - NAMED} more" if len(names) > NAMED else shown


def mistaken(path: Path, wanted: Literal["bundle", "checkpoint"]) -> tuple[str, str] | None:
    """Describes what `path` is, if it is not the bundle or checkpoint that is wanted, and what to do. None for a
    directory of the wanted kind, which may be damaged, and for a directory without any sign of another kind."""
    quoted = shlex.quote(str(path))
    writers = "`hmc compile`" if wanted == "bundle" else "`hmc train`, `hmc prune` or `hmc import`"
    if not path.exists():
        return (
            f"{path} does not exist",
            f"Give the directory that {writers} wrote; paths are relative to the working directory.",
        )
    if not path.is_dir():
        return f"{path} is a file", f"Give the directory that {writers} wrote."
    kind = _kind_of(path)
    if kind == "bundle" and wanted == "checkpoint":
        return (
            "it is a bundle, and not a checkpoint",
            f"Serve it with `hmc serve {quoted}`, or give the checkpoint from which it was compiled.",
        )
    if kind == "checkpoint" and wanted == "bundle":
        return "it is a checkpoint", f"Compile it with `hmc compile {quoted} -o BUNDLE`, and give BUNDLE here."
    if kind == "model" and wanted == "bundle":
        return "it is a model of another program", f"`hmc up {quoted}` imports, compiles and serves it."
    if kind == "model":
        return (
            "it is a model of another program",
            f"Read it with `hmc import {quoted} --out CKPT`, and give CKPT here.",
        )
    inside = sorted(entry for entry in path.iterdir() if entry.is_dir() and _kind_of(entry) == wanted)
    if kind is None and inside:
        names = listed([entry.name for entry in inside])
        return f"it is a folder that holds {wanted}s: {names}", f"Give one of them, such as {inside[0]}."
    return None


def _kind_of(folder: Path) -> Literal["bundle", "checkpoint", "model"] | None:
    """What a directory holds, by the names and the keys of its files."""
    if (folder / "bundle.json").is_file():
        return "bundle"
    config, _ = read_json(folder / "config.json")
    if config.keys() & {"architecture", "head_layout"}:
        return "checkpoint"
    others = ("model.bin", "pytorch_model.bin")
    return "model" if "model_type" in config or any((folder / name).is_file() for name in others) else None

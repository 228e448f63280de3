"""Zip archives from elsewhere, unpacked into a folder that is removed afterwards."""

from __future__ import annotations

import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from tempfile import TemporaryDirectory

from hmc.artifact.errors import InvalidArtifactError

MOST_FILES, MOST_BYTES = 1000, 64 * 2**30
"""Bounds of an archive: files, and bytes of all files when unpacked."""
RATIO, SMALL = 200, 64 * 2**20
"""Most bytes that one packed byte may become, for files above SMALL. Weights hardly shrink when they are packed."""
FIX = "Download it again from where it was published, or unpack it yourself and give the folder."


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
            for member in packed.infolist():
                _extract(packed, member, Path(folder))
            yield Path(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise InvalidArtifactError(what, [f"it is no whole zip archive: {error}"], FIX) from error


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
    return problems + [problem for member in members for problem in _member_problems(member)]


def _member_problems(member: zipfile.ZipInfo) -> list[str]:
    name, problems = member.filename, []
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


def _extract(packed: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> None:
    """Writes one file or folder. No more is read than the archive says the file has."""
    target = folder / member.filename
    if member.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with packed.open(member) as source, target.open("wb") as out:
        shutil.copyfileobj(source, out)

"""Where a command will write, looked at before the work and not after it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def check_folder(option: str, folder: Path) -> None:
    """Raises InvalidRequestError unless `folder` can be written into, or be made; makes nothing."""
    from hmc.artifact.errors import InvalidRequestError

    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise InvalidRequestError(f"{option} {folder}: {nearest} is a file; give a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InvalidRequestError(f"{option} {folder}: {nearest} cannot be written; choose another folder")


def check_file(option: str, file: Path) -> None:
    """Raises InvalidRequestError unless `file` can be written, over what it holds, into a folder that exists."""
    from hmc.artifact.errors import InvalidRequestError

    if file.is_dir():
        raise InvalidRequestError(f"{option} {file} is a folder; give a file in it")
    if not file.parent.is_dir():
        raise InvalidRequestError(f"{option} {file}: folder {file.parent} does not exist; create it first")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise InvalidRequestError(f"{option} {file}: cannot be written; choose another file")


def check_not_read(option: str, file: Path, read: Iterable[Path]) -> None:
    """Raises InvalidRequestError where `file` is one of `read`, or in one of them that is a folder."""
    from hmc.artifact.errors import InvalidRequestError

    target = Path(os.path.realpath(file))
    for path in read:
        place = Path(os.path.realpath(path))
        same = file.exists() and path.exists() and file.samefile(path)  # a hard link, too
        if same or target == place or place in target.parents:
            raise InvalidRequestError(f"{option} {file} would be written over {path}, or into it, which is read")


def check_run_folder(out: Path) -> None:
    """Raises InvalidRequestError where a run or its results would be strewn into a checkpoint or a bundle."""
    from hmc.artifact.errors import InvalidRequestError

    for marker, what in (("config.json", "a model"), ("bundle.json", "a bundle")):
        if (out / marker).is_file():
            raise InvalidRequestError(f"--out {out} is {what}; give a folder of its own")
    check_folder("--out", out)

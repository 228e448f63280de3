"""Checks of output paths, made before the work so that it is not lost."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def check_folder(option: str, folder: Path) -> None:
    """Raises InvalidRequestError unless `folder` is writable or can be created. It is not created."""
    from hmc.artifact.errors import InvalidRequestError

    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise InvalidRequestError(f"{option} {folder}: {nearest} is a file; give a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InvalidRequestError(f"{option} {folder}: {nearest} cannot be written; choose another folder")


def check_file(option: str, file: Path) -> None:
    """Raises InvalidRequestError unless `file` can be written or replaced: its folder must exist and be writable, too.

    A device or a pipe is written as it is.
    """
    from hmc.artifact.errors import InvalidRequestError

    if file.is_dir():
        raise InvalidRequestError(f"{option} {file} is a folder; give a file in it")
    if not file.parent.is_dir():
        raise InvalidRequestError(f"{option} {file}: folder {file.parent} does not exist; create it first")
    if file.exists() and not os.access(file, os.W_OK):
        raise InvalidRequestError(f"{option} {file}: cannot be written; choose another file")
    folder = Path(os.path.realpath(file)).parent
    if (file.is_file() or not file.exists()) and not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidRequestError(
            f"{option} {file}: {folder} cannot be written, and a file is replaced whole; choose another folder"
        )


def check_not_read(option: str, file: Path, read: Iterable[Path]) -> None:
    """Raises InvalidRequestError if `file` is one of the inputs `read`, or lies in one of them."""
    from hmc.artifact.errors import InvalidRequestError

    target = Path(os.path.realpath(file))
    for path in read:
        place = Path(os.path.realpath(path))
        same = file.exists() and path.exists() and file.samefile(path)  # hard links too
        if same or target == place or place in target.parents:
            raise InvalidRequestError(f"{option} {file} would overwrite {path}, which is an input, or write into it")


def check_run_folder(out: Path) -> None:
    """Raises InvalidRequestError if `out` is a checkpoint or a bundle, which a run would fill with its own files."""
    from hmc.artifact.errors import InvalidRequestError

    for marker, what in (("config.json", "a model"), ("bundle.json", "a bundle")):
        if (out / marker).is_file():
            raise InvalidRequestError(f"--out {out} is {what}; give a folder of its own")
    check_folder("--out", out)


def say_replaced_files(files: Iterable[tuple[str, Path]]) -> None:
    """Says on standard error which files will be replaced, and what they are. files: option and file of each."""
    from hmc.artifact.errors import HmcError
    from hmc.benchmark.report.results import Report
    from hmc.cli.common.consoles import note, open_console

    for option, file in files:
        if not file.is_file():
            continue
        what = "the existing file"
        try:
            former = Report.read(file)
            what = f"the report on {former.bundle.path} of {former.began}"
        except HmcError:  # no report, or one of another version
            pass
        note(open_console(stderr=True), f"{option} {file}: {what} will be replaced at the end", style="yellow")


def say_replaced(out: Path) -> None:
    """Says on standard error that the directory `out` will be replaced, and which measurements go with it."""
    from hmc.artifact.bundle.manifest import read_manifest
    from hmc.artifact.errors import HmcError
    from hmc.cli.common.consoles import note, open_console

    if not out.is_dir() or not any(out.iterdir()):
        return
    lost = ""
    try:
        measured = [level.name for level in read_manifest(out).levels if level.quality or level.latency]
        if measured:
            lost = f", and with it the recorded quality and latency of {', '.join(measured)}"
    except HmcError:  # no bundle, or one that cannot be read
        pass
    note(
        open_console(stderr=True), f"--out {out}: its present content will be replaced at the end{lost}", style="yellow"
    )

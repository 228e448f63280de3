"""Which form of model a path has, and its reader."""

from __future__ import annotations

import zipfile
from pathlib import Path

from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.ctranslate2.reader import import_ctranslate2, is_ctranslate2
from hmc.artifact.distribution import how_to_install
from hmc.artifact.errors import HmcError
from hmc.artifact.m2m100.reader import import_m2m100, is_m2m100
from hmc.artifact.marian.reader import import_marian
from hmc.artifact.npz.reader import import_release
from hmc.artifact.npz.release import is_release
from hmc.artifact.storage.weight_files import Arrays


def import_model(path: Path, *, source_language: str | None = None, target_language: str | None = None) -> Checkpoint:
    """Reads a model of another program as a checkpoint with every head open.

    path: a folder; a zip archive of a Marian model; or the file of weights in a folder.
    Languages: None takes them from the model's own files. Raises InvalidArtifactError that lists every problem, and
    InvalidRequestError for a checkpoint or bundle of HMC.
    """
    if path.name.endswith((".safetensors", ".bin")) and path.is_file():
        path = path.parent
    if is_ctranslate2(path):
        return import_ctranslate2(path, source_language=source_language, target_language=target_language)
    if zipfile.is_zipfile(path) or is_release(path):
        return import_release(path, source_language=source_language, target_language=target_language)
    read = import_m2m100 if is_m2m100(path) else import_marian
    return read(path, source_language=source_language, target_language=target_language, read_pickled=read_pickled)


def lossy_note(checkpoint: Checkpoint) -> str | None:
    """What the weights of an imported model have lost where they were stored in integers; None for floats."""
    stored = checkpoint.config.provenance.get("weights")
    if stored not in ("int8", "int16"):
        return None
    return (
        f"The weights were stored as {stored}: what rounding took away is lost, and every level of this model begins "
        "from there. If you have the model that was converted, import that."
    )


def read_pickled(file: Path) -> Arrays:
    """As `hmc.training.model.checkpoints.read_pickled`; also raises HmcError where PyTorch is not installed."""
    try:
        from hmc.training.model.checkpoints import read_pickled as read
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise HmcError(
            f"{file.name} is of PyTorch, which is not installed: {how_to_install('train')}; or get model.safetensors"
        ) from error
    return read(file)

"""Models of other programs become checkpoints: where they lie, which form they have, and its reader."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hmc.artifact.checkpoint.checkpoint import Checkpoint, CheckpointConfig
from hmc.artifact.ctranslate2.reader import import_ctranslate2, is_ctranslate2
from hmc.artifact.distribution import how_to_install
from hmc.artifact.errors import FailedPreconditionError, HmcError, InvalidRequestError, UnavailableError
from hmc.artifact.git_lfs import refuse_pointer
from hmc.artifact.m2m100.reader import import_m2m100, is_m2m100
from hmc.artifact.marian.generation import REQUEST_OPTIONS, ignored
from hmc.artifact.marian.reader import import_marian
from hmc.artifact.npz.reader import import_release
from hmc.artifact.npz.release import is_release
from hmc.artifact.storage.weight_files import Arrays

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""OWNER/MODEL."""
WANTED = (
    "*.json",
    "*.safetensors",
    "*.bin",
    "*.spm",
    "*.model",
    "*.npz",
    "*.yml",
    "*.vocab",
    "*vocabulary.txt",
    "README.md",
)
"""Files that an import may read. Weights of other frameworks stay where they are."""
UNWANTED = ("*/*", "training_args.bin", "optimizer.bin", "scheduler.bin")


@dataclass(frozen=True)
class FoundModel:
    """Where a model lies."""

    path: Path
    revision: str | None = None
    """The commit that a name on the hub stood for; None for a path."""


def located(model: str, revision: str | None = None, step: Callable[[str], None] = lambda _: None) -> FoundModel:
    """The path `model`, or else the folder of the model that the hub has under this name. revision: a commit, tag or
    branch of the hub; None: the newest commit, which the result names.

    Raises InvalidRequestError for a revision of a path, a malformed name and a model or revision that the hub does not
    have; UnavailableError without a network; FailedPreconditionError where huggingface_hub is not installed.
    """
    path = Path(model)
    if path.exists():
        if revision is not None:
            raise InvalidRequestError(f"revision: it is for a name on the Hugging Face hub, and {model} is a path here")
        return FoundModel(path)
    if not NAME.fullmatch(model):
        raise InvalidRequestError(
            f"{model}: no such file or folder here; give the path of a model, or its name on the Hugging Face hub with "
            "its owner, such as Helsinki-NLP/opus-mt-en-de"
        )
    return _downloaded(model, revision, step)


def _downloaded(model: str, revision: str | None, step: Callable[[str], None]) -> FoundModel:
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ModuleNotFoundError as error:
        raise FailedPreconditionError(
            f"{model}: no such folder here; names on the hub need huggingface_hub: {how_to_install('hub')}"
        ) from error
    step(f"asking the hub for {model}")
    try:
        commit = huggingface_hub.HfApi().model_info(model, revision=revision).sha or revision
        step(f"downloading {model} at {commit}")
        folder = huggingface_hub.snapshot_download(
            model, revision=commit, allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED)
        )
    except errors.RevisionNotFoundError as error:
        raise InvalidRequestError(f"{model} on the hub has no revision {revision!r}") from error
    except errors.RepositoryNotFoundError as error:
        raise InvalidRequestError(
            f"{model}: no such folder here, and the hub has no such model, or it needs a token (`hf auth login`)"
        ) from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError, _network_error()) as error:
        raise UnavailableError(
            f"{model}: no such folder here, and the hub cannot be reached ({_first_line(error)}); download the model "
            "on a machine with a network, and give its folder"
        ) from error
    return FoundModel(Path(folder), commit)


def _network_error() -> type[Exception]:
    """The base of the errors of the hub's HTTP client."""
    import httpx2

    return httpx2.HTTPError


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def import_model(path: Path, *, source_language: str | None = None, target_language: str | None = None) -> Checkpoint:
    """Reads a model of another program as a checkpoint with every head open.

    path: a folder; a zip archive of a Marian model; or the file of weights in a folder.
    Languages: None takes them from the model's own files. Raises InvalidArtifactError that lists every problem, and
    InvalidRequestError for a checkpoint or bundle of HMC.
    """
    if path.is_file():
        refuse_pointer(path, str(path))
    if path.name.endswith((".safetensors", ".bin")) and path.is_file():
        path = path.parent
    if is_ctranslate2(path):
        return import_ctranslate2(path, source_language=source_language, target_language=target_language)
    if zipfile.is_zipfile(path) or is_release(path):
        return import_release(path, source_language=source_language, target_language=target_language)
    read = import_m2m100 if is_m2m100(path) else import_marian
    return read(path, source_language=source_language, target_language=target_language, read_pickled=read_pickled)


def notes_of(config: CheckpointConfig) -> list[str]:
    """Notes on an imported model, a sentence each: the losses of its weights, its own decoding defaults, and its
    settings that HMC ignores."""
    decoding = config.provenance.get("generation", {})
    options = [f"{option} {decoding[name]}" for name, option in REQUEST_OPTIONS.items() if name in decoding]
    left = ignored(decoding, config.architecture)
    lossy = lossy_note(config)
    notes = [lossy] if lossy else []
    if options:
        notes.append(
            f"The model comes with decoding defaults that HMC does not apply itself: {', '.join(options)}. To decode "
            "as its authors did, send them with each request."
        )
    if left:
        notes.append(f"Settings of the model that HMC ignores: {', '.join(left)}.")
    return notes


def lossy_note(config: CheckpointConfig) -> str | None:
    """The losses of the weights of an imported model, if they were stored as integers. None for floats."""
    stored = config.provenance.get("weights")
    if stored not in ("int8", "int16"):
        return None
    return (
        f"The weights were stored as {stored}: what rounding took away is lost, and every level of this model begins "
        "from there. If you have the model that was converted, import that."
    )


def read_pickled(file: Path) -> Arrays:
    """As `hmc.training.model.pickled_weights.read_pickled`; also raises HmcError where PyTorch is not installed."""
    try:
        from hmc.training.model.checkpoints import read_pickled as read
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise HmcError(
            f"{file.name} is a file of PyTorch, which is not installed: {how_to_install('train')}; or get "
            "model.safetensors"
        ) from error
    return read(file)

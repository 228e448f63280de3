"""Models by their name on the Hugging Face hub, downloaded at one revision into the hub's own cache."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hmc.artifact.distribution import how_to_install
from hmc.artifact.errors import FailedPreconditionError, InvalidRequestError, UnavailableError

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""OWNER/MODEL."""
WANTED = ("*.json", "*.safetensors", "*.bin", "*.spm", "*.model", "*.npz", "*.yml", "*vocabulary.txt", "README.md")
"""Files that an import may read. Weights of other frameworks stay where they are."""
UNWANTED = ("*/*", "training_args.bin", "optimizer.bin", "scheduler.bin")


@dataclass(frozen=True)
class Found:
    """Where a model lies."""

    path: Path
    revision: str | None = None
    """The commit that a name on the hub stood for; None for a path."""


def located(model: str, revision: str | None = None, step: Callable[[str], None] = lambda _: None) -> Found:
    """The path `model`, or else what the hub has under that name. revision: a commit, tag or branch of the hub; None:
    the newest commit, which the result names.

    Raises InvalidRequestError for a revision of a path, a malformed name and a model or revision that the hub does not
    have; UnavailableError without a network; FailedPreconditionError where huggingface_hub is not installed.
    """
    path = Path(model)
    if path.exists():
        if revision is not None:
            raise InvalidRequestError(f"--revision is for a name on the Hugging Face hub, and {model} is a path here")
        return Found(path)
    if not NAME.fullmatch(model):
        raise InvalidRequestError(
            f"{model}: no such file or folder, and no name on the Hugging Face hub, which would be OWNER/MODEL"
        )
    return _downloaded(model, revision, step)


def _downloaded(model: str, revision: str | None, step: Callable[[str], None]) -> Found:
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
    return Found(Path(folder), commit)


def _network_error() -> type[Exception]:
    """The base of the errors of the hub's HTTP client."""
    import httpx2

    return httpx2.HTTPError


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]

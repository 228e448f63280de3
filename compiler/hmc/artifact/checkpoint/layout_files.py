"""Reading a head layout from a checkpoint or from a JSON file."""

from __future__ import annotations

import json
from pathlib import Path

from hmc.artifact.checkpoint.checkpoint import load_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import HeadLayout


def read_layout(path: Path) -> HeadLayout:
    """Reads a head layout from a checkpoint directory, from its `config.json`, or from a JSON file.

    `HeadLayout.from_json` describes the JSON. Raises InvalidRequestError, InvalidArtifactError.
    """
    if path.is_dir():
        return load_checkpoint(path).layout
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InvalidRequestError(f"head layout {path} does not exist; give a checkpoint or a JSON file") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"head layout {path} is not JSON: {error}") from error
    if isinstance(value, dict):
        value = value.get("head_layout", value)
    try:
        return HeadLayout.from_json(value)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{path}: {error}") from error
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidRequestError(
            f'{path}: a head layout is {{"encoder_self": [[0, 3], []], "decoder_self": …, "cross": …}}, a list of open '
            f"heads for every layer ({error})"
        ) from error

"""What all rooms share: head layouts, the checkpoint and bundle formats, their validation, tokenizers, precisions.

It imports NumPy, pydantic, safetensors, SentencePiece and protobuf, and no torch, onnx or ONNX Runtime. Names are
imported when they are first used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hmc.artifact.lazy import lazy_names

if TYPE_CHECKING:
    from hmc.artifact.bundle.checks import bundle_problems as bundle_problems
    from hmc.artifact.bundle.checks import validate as validate
    from hmc.artifact.bundle.manifest import Level as Level
    from hmc.artifact.bundle.manifest import Manifest as Manifest
    from hmc.artifact.bundle.manifest import read_manifest as read_manifest
    from hmc.artifact.checkpoint.checkpoint import Checkpoint as Checkpoint
    from hmc.artifact.checkpoint.checkpoint import checkpoint_problems as checkpoint_problems
    from hmc.artifact.checkpoint.checkpoint import load_checkpoint as load_checkpoint
    from hmc.artifact.checkpoint.checkpoint import save_checkpoint as save_checkpoint
    from hmc.artifact.errors import HmcError as HmcError
    from hmc.artifact.errors import InvalidArtifactError as InvalidArtifactError
    from hmc.artifact.errors import InvalidRequestError as InvalidRequestError
    from hmc.artifact.model.budgets import HeadBudget as HeadBudget
    from hmc.artifact.model.heads import Head as Head
    from hmc.artifact.model.heads import HeadLayout as HeadLayout
    from hmc.artifact.precisions import PRECISIONS as PRECISIONS
    from hmc.artifact.precisions import Precision as Precision

# ONNX Runtime 1.29 and newer reports to its makers what it runs, unless this is set before it is imported. Every room
# imports this package first. To allow the reports, set the variable to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "hmc.artifact.model.budgets": ("HeadBudget",),
        "hmc.artifact.bundle.manifest": ("Level", "Manifest", "read_manifest"),
        "hmc.artifact.bundle.checks": ("bundle_problems", "validate"),
        "hmc.artifact.checkpoint.checkpoint": (
            "Checkpoint",
            "checkpoint_problems",
            "load_checkpoint",
            "save_checkpoint",
        ),
        "hmc.artifact.errors": ("HmcError", "InvalidArtifactError", "InvalidRequestError"),
        "hmc.artifact.model.heads": ("Head", "HeadLayout"),
        "hmc.artifact.precisions": ("PRECISIONS", "Precision"),
    },
)

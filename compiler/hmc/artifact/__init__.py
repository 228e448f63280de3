"""What all rooms share: head layouts, the checkpoint and bundle formats, their validation, tokenizers, precisions.

It imports NumPy, pydantic, safetensors, SentencePiece and protobuf, and no torch, onnx or ONNX Runtime. Names are
imported when they are first used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hmc.artifact.lazy import lazy_names

if TYPE_CHECKING:
    from hmc.artifact.bundle.checks import bundle_problems, validate
    from hmc.artifact.bundle.manifest import Level, Manifest, read_manifest
    from hmc.artifact.checkpoint.checkpoint import Checkpoint, checkpoint_problems, load_checkpoint, save_checkpoint
    from hmc.artifact.errors import HmcError, InvalidArtifactError, InvalidRequestError
    from hmc.artifact.model.budgets import HeadBudget
    from hmc.artifact.model.heads import Head, HeadLayout
    from hmc.artifact.precisions import PRECISIONS, Precision

# ONNX Runtime 1.29 and newer reports to its makers what it runs, unless this is set before it is imported. Every room
# imports this package first. To allow the reports, set the variable to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = [
    "PRECISIONS",
    "Checkpoint",
    "Head",
    "HeadBudget",
    "HeadLayout",
    "HmcError",
    "InvalidArtifactError",
    "InvalidRequestError",
    "Level",
    "Manifest",
    "Precision",
    "bundle_problems",
    "checkpoint_problems",
    "load_checkpoint",
    "read_manifest",
    "save_checkpoint",
    "validate",
]

__getattr__, __dir__ = lazy_names(
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

"""The clients of the service, and the plain data that their methods take and return.

`from hmc.serving.client import Client`, or `AsyncClient` for asyncio. Names are imported when they are first used. The
clients need neither ONNX Runtime nor SentencePiece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hmc.artifact.lazy import lazy_names

if TYPE_CHECKING:
    from hmc.serving.client.aio import AsyncClient
    from hmc.serving.client.calls import Level
    from hmc.serving.client.client import Client
    from hmc.serving.client.failures import ONCE, Retry
    from hmc.serving.client.files import FileProgress, translate_file, translate_file_async
    from hmc.serving.requests.options import DecodeOptions, Sampling, Segmentation
    from hmc.serving.requests.results import (
        Alternative,
        Answer,
        DeviceUse,
        DocumentPiece,
        LatencySummary,
        LevelBytes,
        LevelInfo,
        LevelList,
        LevelLoad,
        ModelInfo,
        Partial,
        Segment,
        ServerStatus,
        StreamAnswer,
        Token,
        Translation,
    )
    from hmc.serving.requests.selectors import Selector

__all__ = [
    "ONCE",
    "Alternative",
    "Answer",
    "AsyncClient",
    "Client",
    "DecodeOptions",
    "DeviceUse",
    "DocumentPiece",
    "FileProgress",
    "LatencySummary",
    "Level",
    "LevelBytes",
    "LevelInfo",
    "LevelList",
    "LevelLoad",
    "ModelInfo",
    "Partial",
    "Retry",
    "Sampling",
    "Segment",
    "Segmentation",
    "Selector",
    "ServerStatus",
    "StreamAnswer",
    "Token",
    "Translation",
    "translate_file",
    "translate_file_async",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "hmc.serving.client.aio": ("AsyncClient",),
        "hmc.serving.client.calls": ("Level",),
        "hmc.serving.client.client": ("Client",),
        "hmc.serving.client.failures": ("ONCE", "Retry"),
        "hmc.serving.client.files": ("FileProgress", "translate_file", "translate_file_async"),
        "hmc.serving.requests.options": ("DecodeOptions", "Sampling", "Segmentation"),
        "hmc.serving.requests.results": (
            "Alternative", "Answer", "DeviceUse", "DocumentPiece", "LatencySummary", "LevelBytes", "LevelInfo",
            "LevelList", "LevelLoad", "ModelInfo", "Partial", "Segment", "ServerStatus", "StreamAnswer", "Token",
            "Translation",
        ),
        "hmc.serving.requests.selectors": ("Selector",),
    },
)  # fmt: skip

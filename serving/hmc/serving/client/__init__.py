"""The clients of the service, and the plain data that their methods take and return.

`from hmc.serving.client import Client`, or `AsyncClient` for asyncio. Names are imported when they are first used. The
clients need neither ONNX Runtime nor SentencePiece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hmc.artifact.lazy import lazy_names

if TYPE_CHECKING:
    from hmc.artifact.errors import DeadlineExceededError as DeadlineExceededError
    from hmc.artifact.errors import DeviceUnavailableError as DeviceUnavailableError
    from hmc.artifact.errors import FailedPreconditionError as FailedPreconditionError
    from hmc.artifact.errors import HmcError as HmcError
    from hmc.artifact.errors import InternalServiceError as InternalServiceError
    from hmc.artifact.errors import InvalidArtifactError as InvalidArtifactError
    from hmc.artifact.errors import InvalidRequestError as InvalidRequestError
    from hmc.artifact.errors import LevelNotFoundError as LevelNotFoundError
    from hmc.artifact.errors import LevelNotLoadedError as LevelNotLoadedError
    from hmc.artifact.errors import MemoryInUseError as MemoryInUseError
    from hmc.artifact.errors import ModelNotFoundError as ModelNotFoundError
    from hmc.artifact.errors import OverloadedError as OverloadedError
    from hmc.artifact.errors import PermissionDeniedError as PermissionDeniedError
    from hmc.artifact.errors import PortInUseError as PortInUseError
    from hmc.artifact.errors import RateLimitedError as RateLimitedError
    from hmc.artifact.errors import RetryableError as RetryableError
    from hmc.artifact.errors import TooLargeError as TooLargeError
    from hmc.artifact.errors import UnauthenticatedError as UnauthenticatedError
    from hmc.artifact.errors import UnavailableError as UnavailableError
    from hmc.engine.requests.options import DecodeOptions as DecodeOptions
    from hmc.engine.requests.options import Sampling as Sampling
    from hmc.engine.requests.results import DeviceUse as DeviceUse
    from hmc.serving.client.aio import AsyncClient as AsyncClient
    from hmc.serving.client.calls import Level as Level
    from hmc.serving.client.client import Client as Client
    from hmc.serving.client.failures import ONCE as ONCE
    from hmc.serving.client.failures import Retry as Retry
    from hmc.serving.client.files import FileProgress as FileProgress
    from hmc.serving.client.files import translate_file as translate_file
    from hmc.serving.client.files import translate_file_async as translate_file_async
    from hmc.serving.requests.options import Segmentation as Segmentation
    from hmc.serving.requests.results import Alternative as Alternative
    from hmc.serving.requests.results import Answer as Answer
    from hmc.serving.requests.results import DocumentPiece as DocumentPiece
    from hmc.serving.requests.results import LatencySummary as LatencySummary
    from hmc.serving.requests.results import LevelBytes as LevelBytes
    from hmc.serving.requests.results import LevelInfo as LevelInfo
    from hmc.serving.requests.results import LevelList as LevelList
    from hmc.serving.requests.results import LevelLoad as LevelLoad
    from hmc.serving.requests.results import ModelInfo as ModelInfo
    from hmc.serving.requests.results import Partial as Partial
    from hmc.serving.requests.results import Segment as Segment
    from hmc.serving.requests.results import ServerStatus as ServerStatus
    from hmc.serving.requests.results import StreamAnswer as StreamAnswer
    from hmc.serving.requests.results import Token as Token
    from hmc.serving.requests.results import Translation as Translation
    from hmc.serving.requests.selectors import Selector as Selector

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "hmc.artifact.errors": (
            "DeadlineExceededError", "DeviceUnavailableError", "FailedPreconditionError", "HmcError",
            "InternalServiceError", "InvalidArtifactError", "InvalidRequestError", "LevelNotFoundError",
            "LevelNotLoadedError", "MemoryInUseError", "ModelNotFoundError", "OverloadedError",
            "PermissionDeniedError", "PortInUseError", "RateLimitedError", "RetryableError", "TooLargeError",
            "UnauthenticatedError", "UnavailableError",
        ),
        "hmc.serving.client.aio": ("AsyncClient",),
        "hmc.serving.client.calls": ("Level",),
        "hmc.serving.client.client": ("Client",),
        "hmc.serving.client.failures": ("ONCE", "Retry"),
        "hmc.serving.client.files": ("FileProgress", "translate_file", "translate_file_async"),
        "hmc.engine.requests.options": ("DecodeOptions", "Sampling"),
        "hmc.serving.requests.options": ("Segmentation",),
        "hmc.serving.requests.results": (
            "Alternative", "Answer", "DeviceUse", "DocumentPiece", "LatencySummary", "LevelBytes", "LevelInfo",
            "LevelList", "LevelLoad", "ModelInfo", "Partial", "Segment", "ServerStatus", "StreamAnswer", "Token",
            "Translation",
        ),
        "hmc.serving.requests.selectors": ("Selector",),
    },
)  # fmt: skip

"""Serving: texts, documents, levels, gRPC server and client, on the engine and grpcio.

`from hmc.serving import Translator` translates in this process; `hmc.serving.client.Client` asks a server. Both modules
have the errors that their calls raise. Names are imported when they are first used, so that a client does not load ONNX
Runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import hmc.artifact  # noqa: F401 - switches off the telemetry of ONNX Runtime, before any module imports it
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
    from hmc.serving.requests.options import Target as Target
    from hmc.serving.requests.results import Alternative as Alternative
    from hmc.serving.requests.results import Partial as Partial
    from hmc.serving.requests.results import Token as Token
    from hmc.serving.requests.results import Translation as Translation
    from hmc.serving.requests.selectors import Selector as Selector
    from hmc.serving.translator import Translator as Translator

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
        "hmc.engine.requests.options": ("DecodeOptions", "Sampling"),
        "hmc.serving.requests.options": ("Target",),
        "hmc.serving.requests.results": ("Alternative", "Partial", "Token", "Translation"),
        "hmc.serving.requests.selectors": ("Selector",),
        "hmc.serving.translator": ("Translator",),
    },
)  # fmt: skip

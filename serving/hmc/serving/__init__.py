"""Serving: tokenizer, decoding, scheduling, gRPC server and client, on ONNX Runtime and grpcio.

`from hmc.serving import Translator` translates in this process; `hmc.serving.client.Client` asks a server. Names are
imported when they are first used, so that a client does not load ONNX Runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import hmc.artifact  # noqa: F401 - switches off the telemetry of ONNX Runtime, before any module imports it
from hmc.artifact.lazy import lazy_names

if TYPE_CHECKING:
    from hmc.serving.requests.options import DecodeOptions, Sampling, Target
    from hmc.serving.requests.results import Alternative, Partial, Token, Translation
    from hmc.serving.requests.selectors import Selector
    from hmc.serving.translator import Translator

__all__ = [
    "Alternative",
    "DecodeOptions",
    "Partial",
    "Sampling",
    "Selector",
    "Target",
    "Token",
    "Translation",
    "Translator",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "hmc.serving.requests.options": ("DecodeOptions", "Sampling", "Target"),
        "hmc.serving.requests.results": ("Alternative", "Partial", "Token", "Translation"),
        "hmc.serving.requests.selectors": ("Selector",),
        "hmc.serving.translator": ("Translator",),
    },
)

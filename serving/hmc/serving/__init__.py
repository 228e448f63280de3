"""Serving: texts, documents, levels, gRPC server and client, on the engine and grpcio.

`from hmc.serving import Translator` translates in this process; `hmc.serving.client.Client` asks a server. Names are
imported when they are first used, so that a client does not load ONNX Runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import hmc.artifact  # noqa: F401 - switches off the telemetry of ONNX Runtime, before any module imports it
from hmc.artifact.lazy import lazy_names

if TYPE_CHECKING:
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
        "hmc.engine.requests.options": ("DecodeOptions", "Sampling"),
        "hmc.serving.requests.options": ("Target",),
        "hmc.serving.requests.results": ("Alternative", "Partial", "Token", "Translation"),
        "hmc.serving.requests.selectors": ("Selector",),
        "hmc.serving.translator": ("Translator",),
    },
)

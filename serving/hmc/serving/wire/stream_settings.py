"""Level and options of the texts of a stream. Most texts repeat those of the text before, which are checked once."""

from __future__ import annotations

from functools import lru_cache

from hmc.artifact.errors import InvalidRequestError
from hmc.serving.requests.options import DecodeOptions
from hmc.serving.requests.selectors import Selector
from hmc.serving.wire.messages import options_from_proto, selector_from_proto
from hmc.serving.wire.rules import check_request
from hmc.v1 import translation_pb2 as pb

MAX_REMEMBERED, MAX_REMEMBERED_BYTES = 256, 1024
"""Most different settings that are remembered, and bytes of the longest ones: callers choose what is in them."""


def checked_settings(request: pb.TranslateStreamRequest) -> tuple[Selector, DecodeOptions]:
    """Checks a request by the rules of its fields, and returns its level and options.

    Raises InvalidRequestError with every value at fault, as `check_request`.
    """
    level, options = request.level.SerializeToString(), request.options.SerializeToString()
    known = _known(level, options) if len(level) + len(options) <= MAX_REMEMBERED_BYTES else None
    if known is None:
        check_request(request)
        return selector_from_proto(request.level), options_from_proto(request.options)
    timeout = request.timeout_ms if request.HasField("timeout_ms") else None
    check_request(
        pb.TranslateStreamRequest(
            id=request.id, text=request.text, target_prefix=request.target_prefix, timeout_ms=timeout
        )
    )
    return known


@lru_cache(maxsize=MAX_REMEMBERED)
def _known(level: bytes, options: bytes) -> tuple[Selector, DecodeOptions] | None:
    """Settings as plain data; None if a value breaks a rule. level, options: messages as bytes."""
    request = pb.TranslateStreamRequest(
        level=pb.LevelSelector.FromString(level), options=pb.DecodingOptions.FromString(options)
    )
    try:
        check_request(request)
        return selector_from_proto(request.level), options_from_proto(request.options)
    except InvalidRequestError:
        return None

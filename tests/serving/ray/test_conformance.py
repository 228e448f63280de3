"""Tests of the plain server's API, run against Ray's door: statuses, messages, trailers, deadlines and streams.

Of `tests/serving/server`, all that look at the calls alone; the others look into the process of the server.
"""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from tests.serving.fakes import DEADLINE_S, GUARD_S, failure
from tests.serving.server.test_decoding_calls import (  # noqa: F401 - pytest runs them here too
    test_errors_of_a_piecewise_call,
    test_pieces_come_before_the_answer,
    test_prefixes_reach_the_translator,
    test_references_reach_the_translator,
    test_refused_calls,
)
from tests.serving.server.test_documents import (  # noqa: F401
    test_a_prefix_begins_the_first_sentence,
    test_refusals,
    test_segmentation_of_a_request,
    test_what_a_document_cannot_have,
)
from tests.serving.server.test_protocol import (  # noqa: F401
    test_every_call_checks_its_request,
    test_the_client_has_the_violations,
    test_violations_that_do_not_fit_into_the_trailers_are_counted,
)
from tests.serving.server.test_stream import (  # noqa: F401
    test_a_long_stream_keeps_order_and_its_bound,
    test_an_error_of_a_text_is_in_its_answer,
    test_an_error_of_the_texts_themselves_is_raised,
    test_each_text_of_a_stream_chooses_its_level,
    test_errors_of_a_stream_name_the_level_if_one_was_chosen,
)
from tests.serving.server.test_translate import (  # noqa: F401
    test_a_stream_of_invalid_bytes,
    test_bytes_that_are_not_a_request,
    test_every_selector,
    test_refused_calls_say_why,
    test_translate_at_the_requested_level,
)

from hmc.artifact.errors import DeadlineExceededError, InternalServiceError
from hmc.serving.client import Client
from hmc.v1 import translation_pb2 as pb

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_the_health_is_told(client: Client) -> None:
    client.wait_ready(GUARD_S)


def test_calls_have_names(stub: Any) -> None:
    request = pb.TranslateRequest(texts=["a"])
    _, call = stub.Translate.with_call(request, metadata=(("x-request-id", "mine-1"),))
    assert dict(call.trailing_metadata())["x-request-id"] == "mine-1"


def test_the_deadline_cancels_the_texts(client: Client) -> None:
    """The queue has place for eight texts: it is free again."""
    with pytest.raises(DeadlineExceededError, match="choose a level with fewer heads"):
        client.translate(["hold"] * 8, timeout=DEADLINE_S)
    assert [t.text for t in client.translate(["a"] * 8)] == ["full:a"] * 8


def test_a_bug_is_internal_and_kept_secret(client: Client) -> None:
    with pytest.raises(InternalServiceError, match="the server has a bug") as caught:
        client.translate(["crash"])
    assert "secret" not in str(caught.value)


def test_a_full_queue_is_refused_in_the_words_of_the_server(stub: Any) -> None:
    code, message = failure(lambda: stub.Translate(pb.TranslateRequest(texts=["hold"] * 9), timeout=GUARD_S))
    assert (code, message) == ("RESOURCE_EXHAUSTED", "texts[8]: the queue is full: try again later")


def test_admins_are_not_served(channel: grpc.Channel) -> None:
    call: Any = channel.unary_unary("/hmc.v1.AdminService/Reload")
    assert failure(lambda: call(b""))[0] == "UNIMPLEMENTED"

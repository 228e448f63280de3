"""The application that Ray runs: its arguments, and the settings that it refuses. No Ray is started."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tests.serving.fakes import write_bundle

from hmc.artifact import InvalidRequestError
from hmc.serving.ray.registering import FUNCTIONS, add_health_service, add_translation_service
from hmc.serving.ray.replica import PENDING, QueuedTexts

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own, when it is imported
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install '.[ray]'"
)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle")


class Server:
    """Keeps what is registered."""

    def __init__(self) -> None:
        self.methods: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, _handlers: object) -> None:
        """Part of what Ray's server has."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        self.methods |= {f"{service}/{name}": handler for name, handler in handlers.items()}


def test_methods_are_registered_for_bytes() -> None:
    server = Server()
    add_translation_service(None, server)
    add_health_service(None, server)
    kinds = {n.rpartition("/")[2]: (h.request_streaming, h.response_streaming) for n, h in server.methods.items()}
    assert kinds == {
        "Translate": (False, False), "Score": (False, False), "ListLevels": (False, False),
        "ListModels": (False, False), "TranslateTokens": (False, True), "TranslateDocument": (False, True),
        "TranslateStream": (True, True), "Check": (False, False),
    }  # fmt: skip
    assert {handler.request_deserializer for handler in server.methods.values()} == {None}


def test_the_file_of_the_example_names_what_there_is(repository: Path) -> None:
    said = (repository / "examples/ray/serve.yaml").read_text(encoding="utf-8")
    assert all(name in said for name in (*FUNCTIONS, "hmc.serving.ray.application:build"))


def test_replicas_follow_the_texts_and_not_the_calls() -> None:
    context = SimpleNamespace(aggregated_metrics={PENDING: {"a": 100.0, "b": 28.0}})
    assert QueuedTexts(64.0)(context) == (2.0, {})
    assert QueuedTexts(64.0)(SimpleNamespace(aggregated_metrics=None)) == (0.0, {})


@needs_ray
@pytest.mark.parametrize(
    ("text", "numbers"), [("2", (2, 2)), (3, (3, 3)), ("1:4", (1, 4)), ("0", None), ("3:1", None), ("many", None)]
)
def test_numbers_of_replicas(text: str | int, numbers: tuple[int, int] | None) -> None:
    from hmc.serving.ray.application import Replicas

    if numbers is None:
        with pytest.raises(InvalidRequestError, match="replicas"):
            Replicas.parse(text)
    else:
        found = Replicas.parse(text)
        assert (found.fewest, found.most) == numbers
        assert ("autoscaling_config" in found.options()) == (numbers[0] != numbers[1])


@needs_ray
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "no bundle to serve"),
        ({"bundles": ["B"], "tread": 1}, "tread"),
        ({"bundles": "B", "http_port": 8080}, "http_port: does not work with Ray, because"),
        ({"bundles": "B", "watch": 3.0}, "watch: does not work with Ray, because deploy again"),
        ({"bundles": "B", "device": "cuda"}, "replicas of Ray run on CPUs"),
        ({"bundles": "B", "replica_texts": 0}, "replica_texts 0"),
    ],
)
def test_arguments_that_cannot_be(bundle: Path, arguments: dict[str, Any], said: str) -> None:
    from hmc.serving.ray.application import build

    given = {n: (str(bundle) if v == "B" else [str(bundle)] if v == ["B"] else v) for n, v in arguments.items()}
    with pytest.raises(InvalidRequestError, match=said):
        build(given)


def test_a_call_that_fails_sets_its_status_and_returns() -> None:
    import asyncio

    from google.protobuf.empty_pb2 import Empty

    from hmc.serving.http.methods import Methods
    from hmc.serving.ray.registering import TRANSLATION
    from hmc.serving.ray.replica import unary

    class Ray:
        code = details = trailers = None

        def peer(self) -> str:
            return "ipv4:127.0.0.1:1"

        def invocation_metadata(self) -> list[tuple[str, str]]:
            return []

        def set_code(self, code: Any) -> None:
            self.code = code

        def set_details(self, details: Any) -> None:
            self.details = details

        def set_trailing_metadata(self, trailers: Any) -> None:
            self.trailers = trailers

    async def fails(_data: bytes, call: Any) -> None:
        await call.abort(grpc.StatusCode.NOT_FOUND, "no such level", (("a", "b"),))

    failing: Any = grpc.unary_unary_rpc_method_handler(fails)
    methods = Methods(lambda _name, handler: handler)
    methods.add_registered_method_handlers(TRANSLATION.full_name, {"Translate": failing})

    ray = Ray()
    answer = asyncio.run(unary(methods, TRANSLATION.methods_by_name["Translate"], b"", ray))
    assert answer == Empty()
    assert (ray.code, ray.details, ray.trailers) == (grpc.StatusCode.NOT_FOUND, "no such level", [("a", "b")])

"""The metrics of a real server with a real model, and the reasons of refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.serving.fakes import FakeFactory, eventually, failure, write_bundle
from tests.serving.held_steps import HeldSteps
from tests.support.metrics import scrape, value
from tests.tiny import SENTENCES

from hmc.artifact import HmcError, InvalidRequestError
from hmc.artifact.errors import DeadlineExceededError, MemoryInUseError, OverloadedError
from hmc.serving import DecodeOptions, Selector
from hmc.serving.client import ONCE, Client
from hmc.serving.requests.options import MAX_TEXT_BYTES
from hmc.serving.server.access.tokens import line_of
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.observing.metrics import ALL_REASONS
from hmc.serving.server.settings import ServerSettings
from hmc.v1 import translation_pb2 as pb
from hmc.v1 import translation_pb2_grpc as rpc

LEVEL = "h12-int8"
ROWS = 2


@pytest.fixture
def real(lively_bundle: Path) -> Iterator[BackgroundServer]:
    settings = ServerSettings(
        port=0, metrics_port=0, levels=(LEVEL,), default_level=LEVEL, threads=1, cache="none", max_rows=32
    )
    with BackgroundServer(lively_bundle, settings) as running:
        yield running


def test_what_a_level_computes(real: BackgroundServer) -> None:
    model = real.host.name
    before = scrape(real)
    assert value(before, "hmc_sentences_total", level=LEVEL) == 0  # the warm-up does not count
    assert value(before, "hmc_batch_rows_count", level=LEVEL) == 0
    assert value(before, "hmc_decoder_seconds_total", level=LEVEL) == 0
    options = DecodeOptions(beam_size=ROWS, min_length=4, max_length=8)
    with Client(real.address) as client:
        answers = client.translate(SENTENCES[:4], LEVEL, options)
        client.translate([SENTENCES[0]], Selector(auto=True), options)
        client.translate([SENTENCES[0]], None, options)
        assert len(list(client.translate_tokens(SENTENCES[0], None, options))) > 1
        list(client.translate_document(f"{SENTENCES[0]} {SENTENCES[1]}", None, options))
    found = scrape(real)

    def here(name: str, **labels: str) -> float:
        return value(found, name, model=model, level=LEVEL, **labels)

    assert here("hmc_requests_total", code="OK") == 5
    assert {by: here("hmc_level_choices_total", chosen_by=by) for by in ("name", "auto", "default")} == {
        "name": 1, "auto": 1, "default": 3,
    }  # fmt: skip
    assert here("hmc_sentences_total", outcome="done") == 4 + 1 + 1 + 1 + 2
    assert here("hmc_tokens_total", side="target") >= sum(t.target_tokens for t in answers)
    assert here("hmc_first_token_seconds_count") == 2  # the calls that answer in pieces
    assert here("hmc_queue_seconds_count") == here("hmc_compute_seconds_count") == 5
    turns = here("hmc_batch_rows_count")
    assert here("hmc_batch_rows_bucket", le="+Inf") == turns > 0
    assert here("hmc_batch_rows_bucket", le="1.0") == 0  # every text has two rows
    assert ROWS * turns <= here("hmc_batch_rows_sum") <= 32 * turns
    assert here("hmc_encoder_seconds_total") > 0
    assert ROWS * here("hmc_decoder_seconds_total") <= here("hmc_decoder_row_seconds_total") * (1 + 1e-9)
    assert (here("hmc_workers"), here("hmc_max_rows"), here("hmc_queue_size_sentences")) == (1, 32, 1024)
    assert (here("hmc_queued_sentences"), here("hmc_pending_texts"), here("hmc_level_failed")) == (0, 0, 0)
    assert here("hmc_memory_bytes", part="own") + here("hmc_memory_bytes", part="shared") > 0


def test_what_a_server_tells_of_itself(real: BackgroundServer) -> None:
    found = scrape(real)
    version = real.host.status().manifest.version
    assert value(found, "hmc_bundle_info", model=real.host.name, bundle_version=version) == 1
    loaded = {dict(labels)["level"]: v for (name, labels), v in found.items() if name == "hmc_level_loaded"}
    assert {name for name, v in loaded.items() if v} == {LEVEL}
    assert len(loaded) > 1
    assert value(found, "hmc_ready") == 1
    assert value(found, "hmc_draining") == 0
    assert value(found, "hmc_build_info") == 1
    assert value(found, "process_resident_memory_bytes") > 0


def test_cancelled_sentences(real: BackgroundServer, steps: HeldSteps) -> None:
    options = pb.DecodingOptions(beam_size=ROWS, min_length=90, max_length=90)
    with grpc.insecure_channel(real.address) as channel:
        stub: Any = rpc.TranslationServiceStub(channel)
        steps.hold()
        call = stub.Translate.future(pb.TranslateRequest(texts=SENTENCES, options=options))
        steps.wait()
        call.cancel()
        eventually(lambda: value(scrape(real), "hmc_requests_total", code="CANCELLED", level=LEVEL) == 1)
        steps.release()
    eventually(lambda: value(scrape(real), "hmc_pending_texts", level=LEVEL) == 0)

    def ended() -> list[float]:
        found = scrape(real)
        return [value(found, "hmc_sentences_total", level=LEVEL, outcome=x) for x in ("done", "cancelled", "failed")]

    eventually(lambda: sum(ended()) > 0)  # a sentence is counted after it has left its batch
    assert sum(ended()) <= len(SENTENCES)
    assert ended()[2] == 0
    found = scrape(real)
    assert not value(found, "hmc_refusals_total")  # a cancelled call is no refusal


def test_refusals_by_reason(bundle: Path, factory: FakeFactory, tmp_path: Path) -> None:
    """Each request is refused once and counted once; the level is known where one was chosen."""
    tokens = tmp_path / "tokens.toml"
    lines = [
        line_of("slow", "slow", ["translate"], {"texts_per_second": 0.001, "burst": 1}),
        line_of("small", "small", ["translate"], {"max_characters": 3}),
        line_of("free", "free", ["translate", "admin"], {}),
    ]
    tokens.write_text("\n".join(lines))
    settings = ServerSettings(port=0, metrics_port=0, max_texts=10, drain_seconds=60.0)

    with BackgroundServer(bundle, settings, factory) as running:
        expected: dict[str, float] = dict.fromkeys(ALL_REASONS, 0.0)

        def check(reason: str, level: str = "") -> None:
            expected[reason] += 1
            found = scrape(running)
            assert {each: value(found, "hmc_refusals_total", reason=each) for each in ALL_REASONS} == expected
            assert value(found, "hmc_refusals_total", reason=reason, level=level) >= 1

        with Client(running.address, retry=ONCE) as client:
            full = factory["full"]
            for refusal, reason in (
                (OverloadedError("full", None), "queue_full"),
                (MemoryInUseError("no memory"), "memory"),
                (DeadlineExceededError("too late", None), "deadline"),
            ):
                full.refusal = refusal
                with pytest.raises(HmcError):
                    client.translate(["a"])
                check(reason, "full")
            full.refusal = None
            with pytest.raises(InvalidRequestError):
                client.translate(["a"] * 11)
            check("limit")
            with pytest.raises(InvalidRequestError):
                client.translate(["a" * (MAX_TEXT_BYTES + 1)], "h6", segmentation="none")
            check("limit", "h6")

    guarded = ServerSettings(port=0, http_port=0, tokens=tokens)
    with BackgroundServer(bundle, guarded, factory) as running, grpc.insecure_channel(running.address) as channel:
        stub: Any = rpc.TranslationServiceStub(channel)
        admin: Any = rpc.AdminServiceStub(channel)
        assert running.server is not None
        registry = running.server.registry
        known = {name: (("authorization", f"Bearer {name}"),) for name in ("slow", "small", "free")}

        def count(reason: str) -> float:
            labels = {"model": "", "level": "", "reason": reason}
            return registry.get_sample_value("hmc_refusals_total", labels) or 0.0

        request = pb.TranslateRequest(texts=["a"])
        stub.Translate(request, metadata=known["slow"])
        assert failure(lambda: stub.Translate(request, metadata=known["slow"]))[0] == "RESOURCE_EXHAUSTED"
        assert count("rate") == 1
        long = pb.TranslateRequest(texts=["four"])
        assert failure(lambda: stub.Translate(long, metadata=known["small"]))[0] == "INVALID_ARGUMENT"
        assert count("limit") == 1
        stream = iter([pb.TranslateStreamRequest(text="four")])
        (answer,) = stub.TranslateStream(stream, metadata=known["small"])
        assert answer.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert count("limit") == 2
        large = pb.TranslateTokensRequest(text="a" * (64 * 1024 + 1))
        assert failure(lambda: list(stub.TranslateTokens(large, metadata=known["free"])))[0] == "INVALID_ARGUMENT"
        assert count("limit") == 3
        assert failure(lambda: stub.Translate(request))[0] == "UNAUTHENTICATED"
        assert count("unauthenticated") == 1
        assert failure(lambda: admin.Reload(pb.ReloadRequest(), metadata=known["small"]))[0] == "PERMISSION_DENIED"
        assert count("permission") == 1


def test_reloads_are_counted(bundle: Path, factory: FakeFactory) -> None:
    settings = ServerSettings(port=0, metrics_port=0)
    with BackgroundServer(bundle, settings, factory) as running, Client(running.address) as client:
        client.reload(write_bundle(bundle.parent / "new", version="new"))
        with pytest.raises(HmcError):
            client.reload(bundle.parent / "missing")
        found = scrape(running)
        assert value(found, "hmc_reloads_total", model="en-de", outcome="done") == 1
        assert value(found, "hmc_reloads_total", model="en-de", outcome="failed") == 1
        assert value(found, "hmc_bundle_info", bundle_version="new") == 1

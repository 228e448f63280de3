"""Decoder variants open when a sentence first needs one, while other sentences go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.serving.fakes import GUARD_S, eventually

from hmc.artifact import InvalidArtifactError
from hmc.artifact.bundle.manifest import Variant
from hmc.artifact.errors import UnavailableError
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling.engine import Engine
from hmc.engine.scheduling.postprocessor import Postprocessor
from hmc.serving import DecodeOptions, Sampling, Translator

SOURCE = [5, 9, 40, 7, 0]
PLAIN, GREEDY = DecodeOptions(max_length=20), DecodeOptions(beam_size=1, max_length=20)
SAMPLED = DecodeOptions(max_length=20, sampling=Sampling(seed=1))


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Two events. The first is set when the sampling graph begins to open; setting the second lets it open."""
    begun, go_on, decoder = threading.Event(), threading.Event(), LevelSessions.decoder

    def slow(self: LevelSessions, variant: Variant | None = None) -> Any:
        if variant == "sampling" and variant not in self.decoders:
            begun.set()
            assert go_on.wait(GUARD_S)
        return decoder(self, variant)

    monkeypatch.setattr(LevelSessions, "decoder", slow)
    yield begun, go_on
    go_on.set()


def test_other_sentences_go_on_while_a_graph_is_opened(
    engine: Engine, opening: tuple[threading.Event, threading.Event]
) -> None:
    begun, go_on = opening
    sampled = [engine.submit(SOURCE, SAMPLED) for _ in range(3)]
    assert begun.wait(GUARD_S)
    prefixed = engine.submit(SOURCE, PLAIN, Constraints((7,)))
    assert prefixed.result(GUARD_S).hypotheses
    assert engine.submit(SOURCE, GREEDY).result(GUARD_S).hypotheses
    assert engine.pending == engine.pending_interactive == 3
    assert sampled[0].cancel()
    assert engine.pending == 2
    go_on.set()
    assert sampled[1].result(GUARD_S).hypotheses == sampled[2].result(GUARD_S).hypotheses
    assert not [thread for thread in threading.enumerate() if thread.name == "hmc-open-sampling"]


def test_a_graph_that_cannot_be_opened_fails_only_the_sentences_that_need_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = LevelSessions.decoder

    def broken(self: LevelSessions, variant: Variant | None = None) -> Any:
        if variant == "sampling":
            raise InvalidArtifactError("bundle", ["decoder_sampling.onnx is broken"], "Compile it again.")
        return decoder(self, variant)

    with monkeypatch.context() as patch:
        patch.setattr(LevelSessions, "decoder", broken)
        futures = [engine.submit(SOURCE, options) for options in (PLAIN, SAMPLED, SAMPLED, GREEDY)]
        for future in futures[1:3]:
            with pytest.raises(InvalidArtifactError, match="is broken"):
                future.result(GUARD_S)
        assert futures[0].result(GUARD_S).hypotheses
        assert futures[3].result(GUARD_S).hypotheses
    assert engine.submit(SOURCE, SAMPLED).result(GUARD_S).hypotheses  # tried again


@pytest.mark.parametrize("drain", [True, False])
def test_closing_while_a_graph_is_opened(
    sessions: LevelSessions, opening: tuple[threading.Event, threading.Event], drain: bool
) -> None:
    begun, go_on = opening
    engine = Engine(sessions, queue_size=100, max_rows=16)
    future = engine.submit(SOURCE, SAMPLED)
    assert begun.wait(GUARD_S)
    closing = threading.Thread(target=engine.close, args=(drain,))
    closing.start()
    eventually(lambda: engine.queue.closed)
    with pytest.raises(UnavailableError, match="shutting down"):
        engine.submit(SOURCE, PLAIN)
    go_on.set()
    closing.join(GUARD_S)
    assert not closing.is_alive()
    assert future.cancelled() is not drain
    assert not drain or future.result().hypotheses


def test_closing_when_a_graph_could_not_be_opened(sessions: LevelSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, post, engine = LevelSessions.decoder, Postprocessor.post, Engine(sessions, queue_size=100, max_rows=16)

    def broken(self: LevelSessions, variant: Variant | None = None) -> Any:
        if variant == "sampling":
            raise InvalidArtifactError("bundle", ["decoder_sampling.onnx is broken"], "Compile it again.")
        return decoder(self, variant)

    def close_if_unlocked() -> None:
        if engine.queue.changed.acquire(blocking=False):
            engine.queue.changed.release()
            engine.close()

    def post_late(self: Postprocessor, calls: Sequence[Callable[[], object]]) -> None:
        """Before the errors are posted, another thread closes the engine, unless the queue is locked."""
        closing = threading.Thread(target=close_if_unlocked)
        closing.start()
        closing.join(GUARD_S)
        post(self, calls)

    monkeypatch.setattr(LevelSessions, "decoder", broken)
    monkeypatch.setattr(Postprocessor, "post", post_late)
    future = engine.submit(SOURCE, SAMPLED)
    with pytest.raises(InvalidArtifactError, match="is broken"):
        future.result(GUARD_S)
    engine.close()


def test_the_usual_graphs_are_warm(lively_bundle: Path) -> None:
    with Translator(lively_bundle, "h12", device="cpu", threads=1) as translator:
        translator.warm_up()
        engine = translator._engine
        assert isinstance(engine, Engine)
        assert set(engine.sessions.decoders) == {None, "greedy"}

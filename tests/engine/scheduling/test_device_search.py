"""Levels in device form, on this machine's CPU in fp32: what the search in the graph finds is what the search on the
host finds through the same level, to the last bit, and what other levels find."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bundles import bundle_at
from tests.engine.scheduling.test_mixed_requests import a_request, among_others, answer, begin
from tests.once import Once
from tests.serving.fakes import GUARD_S, eventually
from tests.support.trained import CHECKPOINT, english

from hmc.artifact import read_manifest
from hmc.artifact.errors import InternalServiceError
from hmc.engine.arrays import Arrays
from hmc.engine.caches.device import DeviceCaches
from hmc.engine.caches.host import HostCaches
from hmc.engine.requests.caller import Priority
from hmc.engine.requests.options import MAX_TOKENS
from hmc.engine.requests.results import Decoded, DecodedHypothesis
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.encoder import DeviceEncoder
from hmc.engine.runtime.memory.views import DeviceArray, fill
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling import planning
from hmc.engine.scheduling.device_batch import DeviceBatch
from hmc.engine.scheduling.engine import Engine
from hmc.serving import DecodeOptions, Translation, Translator
from hmc.serving.text.tokenizer import BundleTokenizer

Request = tuple[list[int], DecodeOptions]


@pytest.fixture(scope="module")
def bundle(once: Once) -> Path:
    """The embedded model of the demo: all heads, and 36 of them."""
    return once(bundle_at, CHECKPOINT, (None, 36), device_form=True)


@pytest.fixture(scope="module")
def cpu_bundle(once: Once) -> Path:
    return once(bundle_at, CHECKPOINT)


@pytest.fixture(scope="module")
def sources(bundle: Path) -> list[list[int]]:
    """40 sentences of real text, EOS last."""
    tokenizer = BundleTokenizer(bundle, read_manifest(bundle))
    texts = english(40)
    return [tokenizer.encode(text)[0] for text in texts]


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets every request that follows search on the host."""
    return lambda: monkeypatch.setattr(planning, "why_on_host", lambda *_, **__: "a test asks for it")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[DeviceBatch]:
    """The batch of every call of `DeviceBatch.step`."""
    seen: list[DeviceBatch] = []
    step = DeviceBatch.step

    def noted(self: DeviceBatch, undisturbed: Callable[[], bool]) -> Any:
        seen.append(self)
        return step(self, undisturbed)

    monkeypatch.setattr(DeviceBatch, "step", noted)
    return seen


def engine_of(bundle: Path, level: str = "full", max_rows: int = 64, max_tokens: int = MAX_TOKENS) -> Engine:
    manifest = read_manifest(bundle)
    sessions = LevelSessions.open(bundle, manifest.architecture, manifest.level(level), Device("cpu"), 1)
    return Engine(sessions, queue_size=500, max_rows=max_rows, max_tokens=max_tokens)


def decode(engine: Engine, requests: Sequence[Request]) -> list[tuple[DecodedHypothesis, ...]]:
    futures = [engine.submit(source, options) for source, options in requests]
    return [future.result(600).hypotheses for future in futures]


def bits(found: tuple[DecodedHypothesis, ...]) -> list[tuple[object, ...]]:
    """All that a hypothesis says, and all of it counts."""
    return [(h.ids, h.score, h.complete, h.token_scores, h.attention is None) for h in found]


def of_all_kinds(sources: Sequence[list[int]], beam: int | None = None) -> list[Request]:
    """Each sentence with limits of length, a length penalty, and hypotheses, some or all of them out of the usual."""
    draw = random.Random(beam)
    requests = []
    for source in sources:
        rows, least = beam or draw.choice([1, 1, 2, 3, 4, 8]), draw.choice([1, 1, 1, 5, 20])
        options = DecodeOptions(
            beam_size=rows,
            n_best=draw.randint(1, rows),
            length_penalty=draw.choice([0.0, 0.6, 1.0, 1.0, 2.5]),
            min_length=least,
            max_length=draw.choice([None, least, least + 3, 60]),
        )
        requests.append((source, options))
    return requests


@pytest.mark.parametrize("beam", [1, 2, 4, 8])
def test_the_same_as_on_the_host_to_the_last_bit(
    beam: int, bundle: Path, sources: list[list[int]], steps: list[DeviceBatch], on_host: Callable[[], None]
) -> None:
    engine, requests = engine_of(bundle, "h36"), of_all_kinds(sources, beam)
    found = decode(engine, requests)
    assert steps
    on_host()
    steps.clear()
    expected = decode(engine, requests)
    assert not steps
    engine.close()
    assert [bits(each) for each in found] == [bits(each) for each in expected]


@pytest.mark.parametrize("beam", [1, 4])
def test_the_same_translations_as_a_level_for_cpus(
    beam: int, bundle: Path, cpu_bundle: Path, sources: list[list[int]]
) -> None:
    """Its graphs add in another order, so scores differ in their last digits."""
    requests = [(source, DecodeOptions(beam_size=beam, n_best=beam)) for source in sources]
    engines = engine_of(bundle), engine_of(cpu_bundle)
    found, expected = (decode(engine, requests) for engine in engines)
    for engine in engines:
        engine.close()
    for ours, theirs in zip(found, expected, strict=True):
        assert [(h.ids, h.complete) for h in ours] == [(h.ids, h.complete) for h in theirs]
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-5)


def test_sentences_arrive_at_any_time_and_some_are_cancelled(
    bundle: Path, sources: list[list[int]], steps: list[DeviceBatch], on_host: Callable[[], None]
) -> None:
    """Few rows: slots are used again and again, by beams of several sizes in turn."""
    draw, requests = random.Random(0), of_all_kinds(sources)
    engine = engine_of(bundle, max_rows=12)
    futures: list[Future[Decoded]] = []
    others: list[Future[Decoded]] = []
    for source, options in requests:
        if draw.random() < 0.3:
            others.append(engine.submit(source[::-1][1:] + source[-1:], DecodeOptions(max_length=100)))
        futures.append(engine.submit(source, options))
        if draw.random() < 0.3:
            so_far = len(steps)
            eventually(lambda so_far=so_far: len(steps) > so_far or not engine.pending)  # type: ignore[misc]
        if others and draw.random() < 0.5:
            others.pop(draw.randrange(len(others))).cancel()
    wait([*futures, *(other for other in others if not other.cancelled())], 120)
    eventually(lambda: engine.pending == 0)  # what was cancelled leaves after a step
    found = [bits(future.result(0).hypotheses) for future in futures]
    assert len({id(batch) for batch in steps}) >= 3
    on_host()
    assert found == [bits(each) for each in decode(engine, requests)]
    engine.close()


def encoded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sentences of each call of `DeviceEncoder.encode` from now on."""
    seen, encode = list[int](), DeviceEncoder.encode

    def noted(self: DeviceEncoder, new: Any, *others: Any) -> None:
        seen.append(len(new))
        encode(self, new, *others)

    monkeypatch.setattr(DeviceEncoder, "encode", noted)
    return seen


@pytest.mark.parametrize("beam", [1, 4])
def test_sentences_that_wait_are_encoded_with_those_that_begin(
    beam: int, bundle: Path, sources: list[list[int]], monkeypatch: pytest.MonkeyPatch, on_host: Callable[[], None]
) -> None:
    """Of both priorities, in few calls. Some are cancelled while they wait, and leave at once."""
    engine, requests = engine_of(bundle, "h36", max_rows=6 * beam), of_all_kinds(sources, beam)
    calls = encoded(engine, monkeypatch)
    with engine.queue.changed:  # the worker cannot begin yet
        futures = [
            engine.submit(source, options, priority=Priority.BULK if n % 3 else Priority.INTERACTIVE)
            for n, (source, options) in enumerate(requests)
        ]
    wait(futures[:12], 120, FIRST_COMPLETED)
    with engine.queue.changed:
        cancelled = [future for future in futures[-6:] if future.cancel()]
        assert not {job.future for job in engine.queue} & set(cancelled)
    assert cancelled
    answered = [n for n, future in enumerate(futures) if future not in cancelled]
    found = [bits(futures[n].result(600).hypotheses) for n in answered]
    eventually(lambda: not engine.pending)
    assert sum(calls) <= len(requests)  # none is encoded twice
    assert len(calls) <= 8
    on_host()
    expected = decode(engine, [requests[n] for n in answered])
    engine.close()
    assert found == [bits(each) for each in expected]


def test_a_mode_that_is_evicted_gives_back_the_memory_of_staged_sentences(
    bundle: Path, sources: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(bundle, max_rows=4)
    calls, memory = encoded(engine, monkeypatch), engine.sessions.memory
    assert memory.reserved == 0
    for _ in range(2):  # its successor begins with nothing staged
        with engine.queue.changed:
            futures = [engine.submit(source, DecodeOptions()) for source in sources[:6]]
        wait(futures[:1], 120)
        for future in futures[1:]:
            future.cancel()
        assert memory.reserved > 0
        (worker,) = engine.workers
        eventually(lambda: not engine.pending)
        (mode,) = worker._batches
        with engine.queue.changed:
            worker._close(mode)
            engine._schedulers[0].drop(mode)
        assert memory.reserved == 0
    engine.close()
    assert len(calls) == 2
    assert all(count > 1 for count in calls)


def test_sentences_are_not_encoded_ahead_where_several_devices_take_from_a_queue(
    bundle: Path, sources: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows which of them takes a sentence."""
    replicas = [engine_of(bundle).sessions for _ in range(2)]
    engine = Engine(replicas, queue_size=500, max_rows=4)
    calls = encoded(engine, monkeypatch)
    with engine.queue.changed:
        futures = [engine.submit(source, DecodeOptions()) for source in sources[:12]]
    wait(futures, 120)
    engine.close()
    assert calls == [1] * 12


def test_caches_grow_while_sentences_run(
    bundle: Path, sources: list[list[int]], steps: list[DeviceBatch], on_host: Callable[[], None]
) -> None:
    """Wide beams need more nodes than a tight tree has, and a long sentence needs more room than those that run."""
    options = DecodeOptions(beam_size=8, n_best=8, min_length=40, max_length=62)
    requests = [(source, options) for source in sources[:10]]
    long = [token for source in sources[:5] for token in source[:-1]] + sources[0][-1:]
    requests.append((long, DecodeOptions(beam_size=8, n_best=8, max_length=120)))
    engine = engine_of(bundle, max_rows=128)
    futures = [engine.submit(*request) for request in requests[:-1]]
    futures[0].add_done_callback(lambda _: futures.append(engine.submit(*requests[-1])))
    wait(futures, 120)
    found = [bits(future.result(600).hypotheses) for future in futures]
    (batch,) = {id(batch): batch for batch in steps}.values()
    geometries = {geometry for geometry, _ in batch.searches._steps._captured}  # type: ignore[misc, has-type]
    assert {(geometry.bucket, geometry.full) for geometry in geometries} >= {(0, False), (0, True)}
    assert max(geometry.bucket for geometry in geometries) >= 1
    on_host()
    expected = decode(engine, requests)
    engine.close()
    assert found == [bits(each) for each in expected]


def test_one_slot_for_sentences_of_all_lengths(
    lively_device_bundle: Path, lively_bundle: Path, steps: list[DeviceBatch]
) -> None:
    """Geometries share memory, so that each finds what another one left there."""
    rng = np.random.default_rng(0)
    requests = [
        ([*rng.integers(3, 120, size=length).tolist(), 0], DecodeOptions(max_length=int(rng.integers(30, 120))))
        for length in rng.integers(1, 60, size=25)
    ]
    engines = engine_of(lively_device_bundle, max_tokens=500), engine_of(lively_bundle)
    found, expected = (decode(engine, requests) for engine in engines)
    for engine in engines:
        engine.close()
    assert len({geometry for geometry, _ in steps[0].searches._steps._captured}) >= 4  # type: ignore[misc, has-type]
    assert [h[0].ids for h in found] == [h[0].ids for h in expected]


@pytest.mark.parametrize("beam", [1, 4])
def test_a_sentence_whose_scores_are_no_numbers_fails_alone(
    beam: int, bundle: Path, sources: list[list[int]], monkeypatch: pytest.MonkeyPatch, steps: list[DeviceBatch]
) -> None:
    """The keys and values of some sources are NaN. Other sentences use their slots afterwards."""
    engine, encode = engine_of(bundle, max_rows=4 * beam), DeviceEncoder.encode
    broken, options = sources[5], DecodeOptions(beam_size=beam, n_best=beam)
    sound = [source for source in sources[:24] if source != broken]
    expected = decode(engine, [(source, options) for source in sound])

    def damaging(
        self: DeviceEncoder, new: Any, slots: Sequence[int], caches: Mapping[str, DeviceArray], room: int
    ) -> None:
        encode(self, new, slots, caches, room)
        for slot in (slot for slot, source in zip(slots, new, strict=True) if source == broken):
            for name in (name for name in caches if name.startswith("cross_")):
                fill(caches[name].slots(1, slot), np.nan)

    monkeypatch.setattr(DeviceEncoder, "encode", damaging)
    mixed = [source for n in range(0, len(sound), 3) for source in (broken, *sound[n : n + 3])]
    futures = [engine.submit(source, options) for source in mixed]
    found = []
    for source, future in zip(mixed, futures, strict=True):
        if source == broken:
            with pytest.raises(InternalServiceError, match="not finite"):
                future.result(GUARD_S)
        else:
            found.append(future.result(GUARD_S).hypotheses)
    engine.close()
    assert steps
    assert [bits(each) for each in found] == [bits(each) for each in expected]


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_numbers_that_are_none_do_not_stay_in_a_slot_after_a_search_on_the_host(
    beam: int, on_cpu: bool, bundle: Path, cpu_bundle: Path, sources: list[list[int]],
    monkeypatch: pytest.MonkeyPatch, on_host: Callable[[], None],
) -> None:  # fmt: skip
    """A sentence fails in the middle of its translation, and what it wrote is NaN. Others get its slot."""
    on_host()
    engine = engine_of(cpu_bundle if on_cpu else bundle, max_rows=beam)
    options = DecodeOptions(beam_size=beam, n_best=beam)
    expected = decode(engine, [(source, options) for source in sources[:6]])
    kind: Any = HostCaches if on_cpu else DeviceCaches
    run, steps = kind.run, count(1)

    def damaging(self: Any, step: Arrays) -> Arrays:
        outputs: Arrays = run(self, step)
        if next(steps) == 3:  # of at least four: greedy search takes several tokens at once
            if on_cpu:
                for buffer in self.self_attention.values():
                    buffer.view[:] = np.nan
            else:
                views = self.pools.views(self._present)
                for name in (name for name in views if name.startswith("past_")):
                    fill(views[name], np.nan)
            outputs = {**outputs, "scores": np.full_like(outputs["scores"], np.nan)}
        return outputs

    monkeypatch.setattr(kind, "run", damaging)
    with pytest.raises(InternalServiceError, match="not finite"):
        decode(engine, [(sources[9], DecodeOptions(beam_size=beam, min_length=20))])
    found = decode(engine, [(source, options) for source in sources[:6]])
    engine.close()
    assert [bits(each) for each in found] == [bits(each) for each in expected]


@pytest.mark.parametrize("settings", [{}, {"max_rows": 16, "max_tokens": 1000}], ids=["many rows", "few rows"])
def test_requests_of_every_kind_at_once(settings: dict[str, Any], lively_device_bundle: Path) -> None:
    """Each gets what it gets alone, wherever its search runs."""
    draw = random.Random(1)
    requests = [a_request(draw) for _ in range(40)]
    with Translator(lively_device_bundle, "h12", device="cpu", threads=1) as translator:
        alone = [answer(begin(translator, request)) for request in requests]
    assert sum(isinstance(found, Translation) for found in alone) > 20
    with Translator(lively_device_bundle, "h12", device="cpu", threads=2, **settings) as translator:
        found = among_others(translator, requests, draw)
    differing = [index for index in range(len(requests)) if found[index] != alone[index]]
    assert not differing, requests[differing[0]]

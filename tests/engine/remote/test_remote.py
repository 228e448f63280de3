"""A level in the engine's process: the same translations and errors as here, and what is lost when a process goes."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.processes import environment
from tests.serving.fakes import GUARD_S, eventually
from tests.tiny import SENTENCES

from hmc.artifact.errors import (
    FailedPreconditionError,
    InvalidRequestError,
    LevelNotFoundError,
    OverloadedError,
    UnavailableError,
)
from hmc.engine.remote.client import RemoteEngines
from hmc.engine.remote.frames import LENGTH, MAX_FRAME, Cancel, Close, frame
from hmc.engine.remote.host import CUDA_HAS_FAILED
from hmc.engine.requests.caller import Priority
from hmc.serving import DecodeOptions, Sampling, Translation, Translator

BODY = """
import sys
from pathlib import Path
from hmc.engine.remote.host import EngineHost
EngineHost().serve(Path(sys.argv[1]), lambda: print("ready", flush=True))
"""
BROKEN = """
import logging, sys
from types import SimpleNamespace
from hmc.artifact.errors import InternalServiceError
from hmc.engine.remote import host
from hmc.engine.runtime.device import Device

failure, answers = map(eval, sys.argv[1:])
def free_and_total(index):
    if not answers:
        raise InternalServiceError("cudaSetDevice failed with CUDA error 700: an illegal memory access")
    return 1, 2
host.cuda_calls.free_and_total = free_and_total
logging.basicConfig()
engines = host.EngineHost()
replicas = [SimpleNamespace(device=Device("cpu", 0)), SimpleNamespace(device=Device("cuda", 1))]
engines._levels["a"] = host._Level(SimpleNamespace(failure=failure, replicas=replicas), [])
engines.end_with_cuda()
"""
OPTIONS = {
    "greedy": DecodeOptions(beam_size=1),
    "beam": DecodeOptions(),
    "several": DecodeOptions(n_best=3, token_scores=True, alignment=True),
    "sampled": DecodeOptions(sampling=Sampling(seed=7, top_k=5), n_best=2, token_scores=True),
    "limits": DecodeOptions(max_length=5, min_length=3, length_penalty=0.5, patience=2.0),
    "penalties": DecodeOptions(repetition_penalty=1.5, no_repeat_ngram_size=2, suppress_unknown=True),
}


class Process:
    """The engine's process, and a front in this one, whose event loop runs in a thread."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "engine.sock"
        self.begin()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.engines = self.front()

    def begin(self) -> None:
        self.socket.unlink(missing_ok=True)
        command = [sys.executable, "-c", BODY, str(self.socket)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self) -> str:
        """Kills it. Returns what it has said."""
        self.process.kill()
        said = self.process.communicate()[1].decode()
        assert "Traceback" not in said, said
        return said

    def front(self) -> RemoteEngines:
        async def make() -> RemoteEngines:
            engines = RemoteEngines(self.socket)
            await engines.start()
            return engines

        return asyncio.run_coroutine_threadsafe(make(), self.loop).result(GUARD_S)

    def close(self, engines: RemoteEngines) -> None:
        asyncio.run_coroutine_threadsafe(engines.close(), self.loop).result(GUARD_S)

    @contextmanager
    def level(self, bundle: Path, name: str, engines: RemoteEngines | None = None, **more: Any) -> Iterator[Translator]:
        opens = (engines or self.engines).open_level
        with Translator(bundle, name, device="cpu", threads=1, cache="none", opens=opens, **more) as translator:
            yield translator

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(GUARD_S)
        connection.connect(str(self.socket))
        return connection


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    started = Process(tmp_path_factory.mktemp("engine"))
    yield started
    started.kill()


@pytest.fixture
def own_process(tmp_path: Path) -> Iterator[Process]:
    """For a test that ends it."""
    started = Process(tmp_path)
    yield started
    started.kill()


@pytest.mark.parametrize("name", ["full", "h5-int8"])
def test_translations_are_those_of_this_process(process: Process, lively_bundle: Path, name: str) -> None:
    with (
        process.level(lively_bundle, name) as remote,
        Translator(lively_bundle, name, device="cpu", threads=1, cache="none") as here,
    ):
        for kind, options in OPTIONS.items():
            found = remote.translate(SENTENCES, options, segmentation="none")
            expected = here.translate(SENTENCES, options, segmentation="none")
            assert [_without_times(each) for each in found] == [_without_times(each) for each in expected], kind
        text = SENTENCES[0]
        prefix = [here.translate([text])[0].text.split()[0]]
        found, expected = (each.translate([text], target_prefixes=prefix) for each in (remote, here))
        assert found[0].text == expected[0].text
        assert remote.score([text], ["Ein Hund"])[0].score == here.score([text], ["Ein Hund"])[0].score
        assert [each.text for each in remote.stream(text)] == [each.text for each in here.stream(text)]
        assert remote.device == "cpu"
        held = sum(here.weights.values())
        eventually(lambda: sum(remote.weights.values()) == held)  # a front is told once a second


def _without_times(found: Translation) -> Translation:
    return replace(found, queue_s=0.0, compute_s=0.0)


def test_what_is_refused_here_is_refused_at_once(process: Process, lively_bundle: Path) -> None:
    with process.level(lively_bundle, "full", max_rows=8) as remote:
        with pytest.raises(InvalidRequestError, match="beam_size 16: this server runs at most 8"):
            remote.submit("A dog.", DecodeOptions(beam_size=16))
        with pytest.raises(InvalidRequestError, match="attention_heads"):
            remote.submit("A dog.", DecodeOptions(attention_heads=("cross.0.0",)))
        assert remote.pending == 0


def test_a_level_that_cannot_be_opened_says_why(process: Process, lively_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(LevelNotFoundError), process.level(lively_bundle, "h99"):
        pass
    with Translator(lively_bundle, "full", device="cpu", threads=1, cache="none") as other:
        manifest = other.manifest.model_copy(update={"version": "0" * 16})  # of a bundle that was there before
    with (
        pytest.raises(FailedPreconditionError, match="reload"),
        process.level(lively_bundle, "full", manifest=manifest),
    ):
        pass


def test_the_queue_is_here(process: Process, lively_bundle: Path) -> None:
    """The engine gets what starts next; all others wait here, in a queue that can be full."""
    with process.level(lively_bundle, "full", queue_size=4, max_rows=4) as remote:
        long = " ".join(SENTENCES[0] for _ in range(3))
        options = DecodeOptions(beam_size=1, min_length=60, max_length=60)
        futures: list[Future[Any]] = []

        def submit_many() -> None:
            for _ in range(64):
                futures.append(remote.submit(long, options))  # noqa: PERF401 - those before the error count

        with pytest.raises(OverloadedError):
            submit_many()
        assert len(futures) >= 4
        assert all(future.result(GUARD_S).text for future in futures)
        space = threading.Event()
        remote.call_when_space(space.set)
        assert space.wait(GUARD_S)


def test_interactive_sentences_do_not_wait_for_others_here(process: Process, lively_bundle: Path) -> None:
    """The engine gets them at once, however many others wait for rows."""
    with process.level(lively_bundle, "full", max_rows=4) as remote:
        options = DecodeOptions(beam_size=1, min_length=60, max_length=60)
        others = [remote.submit(SENTENCES[0], options, priority=Priority.BULK) for _ in range(32)]
        interactive = [remote.submit(SENTENCES[1], options) for _ in range(8)]
        assert remote._engine.queue.waiting_interactive == 0
        assert all(future.result(GUARD_S).text for future in (*interactive, *others))


def test_cancelled_sentences_leave(process: Process, lively_bundle: Path) -> None:
    with process.level(lively_bundle, "full", max_rows=1) as remote:
        options = DecodeOptions(beam_size=1, min_length=60, max_length=60)
        futures = [remote.submit(SENTENCES[0], options) for _ in range(16)]
        for future in futures[1:]:
            future.cancel()
        assert futures[0].result(GUARD_S).text
        assert remote.pending == 0
        eventually(lambda: remote.work.total.done >= 1)


def test_two_fronts_share_a_level(process: Process, lively_bundle: Path) -> None:
    """It is in memory once, and one of them is told so."""
    second = process.front()
    with process.level(lively_bundle, "h12") as one:
        with process.level(lively_bundle, "h12", second) as two:
            assert one.translate(SENTENCES)[0].text == two.translate(SENTENCES)[0].text
            assert two.weights == {}
            held = one.weights
            assert sum(held.values()) > 0
        assert one.translate(SENTENCES[:1])
    process.close(second)


def test_a_front_that_goes_loses_its_own_sentences_only(process: Process, lively_bundle: Path) -> None:
    second = process.front()
    options = DecodeOptions(beam_size=1, min_length=60, max_length=60)
    with process.level(lively_bundle, "full", max_rows=4) as remote:
        gone = Translator(
            lively_bundle, "full", device="cpu", threads=1, cache="none", max_rows=4, opens=second.open_level
        )
        lost = [gone.submit(SENTENCES[0], options) for _ in range(32)]
        kept = [remote.submit(SENTENCES[1], options) for _ in range(8)]
        process.close(second)
        assert all(future.result(GUARD_S).text for future in kept)
        ended = [future.exception(GUARD_S) for future in lost]
        assert all(error is None or isinstance(error, UnavailableError) for error in ended)
        assert any(ended)


def test_the_engine_dies_and_comes_back(own_process: Process, lively_bundle: Path) -> None:
    """All that is under way fails at once; the level works again when the process does, without a word to it."""
    process = own_process
    with process.level(lively_bundle, "full", max_rows=4) as remote:
        before = [each.text for each in remote.translate(SENTENCES)]
        options = DecodeOptions(beam_size=1, min_length=60, max_length=60)
        futures = [remote.submit(SENTENCES[0], options) for _ in range(32)]
        process.kill()
        ended = [future.exception(GUARD_S) for future in futures]
        assert all(error is None or isinstance(error, UnavailableError) for error in ended)
        assert any(ended)
        assert remote.failure is not None
        with pytest.raises(UnavailableError):
            remote.submit(SENTENCES[0]).result(GUARD_S)
        assert remote.pending == 0
        process.begin()
        eventually(lambda: remote.failure is None)
        assert [each.text for each in remote.translate(SENTENCES)] == before


@pytest.mark.parametrize(
    "sent",
    [
        LENGTH.pack(MAX_FRAME + 1),
        LENGTH.pack(2**32 - 1) + b"x" * 64,
        LENGTH.pack(3) + b"\xc1\xc1\xc1",
        LENGTH.pack(1) + b"\x01",
        frame([Cancel(1), Close(99)])[:-1] + b"\xc0",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_what_is_no_frame_ends_its_connection_only(process: Process, lively_bundle: Path, sent: bytes) -> None:
    with process.level(lively_bundle, "full") as remote:
        with process.connect() as connection:
            connection.sendall(sent)
            with suppress(ConnectionResetError):  # some of it was not read
                assert connection.recv(1) == b""
        assert remote.translate(SENTENCES[:1])[0].text


def test_messages_about_what_is_not_there_change_nothing(process: Process, lively_bundle: Path) -> None:
    with process.level(lively_bundle, "full") as remote, process.connect() as connection:
        connection.sendall(frame([Cancel(12345), Close(99)]))
        assert connection.recv(1)  # closed, it says
        assert remote.translate(SENTENCES[:1])[0].text


def test_only_this_user_can_connect(process: Process) -> None:
    assert process.socket.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("failure", "answers", "code"),
    [
        ("an illegal memory access", False, CUDA_HAS_FAILED),
        ("a score is not finite", True, 0),  # CUDA works: other levels go on
        (None, False, 0),
    ],
)
def test_the_process_ends_with_cuda(failure: str | None, answers: bool, code: int) -> None:
    command = [sys.executable, "-c", BROKEN, repr(failure), repr(answers)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert ended.returncode == code, ended.stderr
    assert ("cuda:1 refuses every call" in ended.stderr) is (code != 0)

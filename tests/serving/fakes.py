"""A bundle that validates, and fake translators that answer at once, to test the server without models."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from hmc.artifact import HeadLayout, Level, Manifest
from hmc.artifact.bundle.manifest import Latency, Quality, decoder_path, encoder_path, write_manifest
from hmc.artifact.errors import OverloadedError, TooLargeError
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.tokenizer.files import TOKENIZER
from hmc.engine.requests.caller import ANYONE, Caller, Priority
from hmc.engine.requests.work import LevelWork
from hmc.serving import Alternative, DecodeOptions, Target, Translation
from hmc.serving.client import DeviceUse
from hmc.serving.requests.options import MAX_TEXT_BYTES
from hmc.serving.requests.results import TextProgress
from hmc.serving.requests.source_side import SourceSide

ARCHITECTURE = Architecture(
    vocab_size=16,
    d_model=8,
    ffn_dim=8,
    encoder_layers=2,
    decoder_layers=2,
    heads=4,
    head_dim=2,
    max_positions=16,
    pad_id=0,
    eos_id=1,
    unk_id=2,
)
GUARD_S = 600.0
"""Seconds after which what never comes fails its test. No test relies on how long anything takes."""
DEADLINE_S = 3.0
"""A deadline that passes in a test. A call on an open connection reaches the server long before, also under load."""
# Level → heads kept in each layer of each kind, and the BLEU that costs.
LEVELS = {"full": (4, 0.0), "h12": (2, -0.2), "h6": (1, -0.9)}


SOURCE_SIDE = SourceSide(
    "en",
    "de",
    room=16,
    count=lambda text: len(text.split()),
    code=lambda text: text[: len(">>deu<< ")] if text.startswith(">>deu<< ") else "",
)
"""Sixteen words fit."""


@dataclass
class FakeTranslator:
    """Answers `LEVEL:TEXT`. A text `hold…` waits for `release`. The text `crash` fails with an error that is no
    HmcError. The queue holds `queue_size` texts."""

    level: str
    version: str = ""
    source: SourceSide = SOURCE_SIDE
    queue_size: int = 8
    device: str = "cpu"
    release: threading.Event = field(default_factory=threading.Event)
    futures: list[Future[Translation]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    priorities: list[Priority] = field(default_factory=list)
    callers: list[Caller] = field(default_factory=list)
    within_s: list[float | None] = field(default_factory=list)
    retry_after_s: float | None = None
    """Of the error for a full queue."""
    refused: int = 0
    """Texts for which the queue was full."""
    refusal: Exception | None = None
    """Every text gets this error."""
    expected: float | None = None
    waiting: list[Callable[[], None]] = field(default_factory=list)
    warm: bool = False
    closed: str = ""
    weights: dict[str, int] = field(default_factory=dict)
    device_bytes: dict[str, int] = field(default_factory=dict)
    device_use: tuple[DeviceUse, ...] = ()
    work: LevelWork = field(default_factory=LevelWork)
    released: int = 0
    failure: str | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)
    """Notified after a text is queued or has ended, and after calls of `call_when_space` and `close`."""

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Waits until `condition`, which reads this translator, holds; fails the test if it never does."""
        wait_for(self.changed, condition)

    @property
    def pending(self) -> int:
        return sum(not future.done() for future in self.futures)

    @property
    def pending_interactive(self) -> int:
        return sum(not f.done() and p.interactive for f, p in zip(self.futures, self.priorities, strict=True))

    def submit(
        self,
        text: str,
        options: DecodeOptions | None = None,
        target: Target | None = None,
        progress: TextProgress | None = None,
        *,
        priority: Priority = Priority.INTERACTIVE,
        caller: Caller = ANYONE,
        within_s: float | None = None,
        line: bool = False,
    ) -> Future[Translation]:
        assert not self.closed, "a closed translator got a text"
        target = target or Target()
        if target.complete or target.text:
            text = f"{text}|{target.text}|{'given' if target.complete else 'prefix'}"
        if len(text.encode()) > MAX_TEXT_BYTES:
            raise TooLargeError(f"text is longer than {MAX_TEXT_BYTES} bytes: split it into sentences")
        self.check_space(priority)
        self.within_s.append(within_s)
        if self.refusal is not None:
            raise self.refusal
        options = options or DecodeOptions()
        future: Future[Translation] = Future()
        with self.changed:
            self.futures.append(future)
            self.texts.append(text)
            self.priorities.append(priority)
            self.callers.append(caller)
            self.changed.notify_all()
        future.add_done_callback(self._announce_space)
        if progress is not None and text.strip():
            for piece in (self.level, ":", text):
                progress(piece)
        if text.startswith("hold"):
            threading.Thread(target=self._answer_later, args=(future, text, options), daemon=True).start()
        elif text == "crash":
            future.set_exception(RuntimeError("secret detail"))
        else:
            future.set_result(self.translation(text, options))
        return future

    def check_space(self, priority: Priority, caller: Caller = ANYONE) -> None:
        if self.pending >= (self.bulk_size if priority is Priority.BULK else self.queue_size):
            with self.changed:
                self.refused += 1
                self.changed.notify_all()
            raise OverloadedError("the queue is full: try again later", self.retry_after_s)

    def expected_s(self, *, interactive: bool) -> float | None:
        return self.expected

    @property
    def bulk_size(self) -> int:
        return -(-self.queue_size // 2)

    def call_when_space(self, call: Callable[[], None]) -> None:
        self.waiting.append(call)
        self._announce_space(None)

    def _announce_space(self, _: object) -> None:
        if self.pending < self.bulk_size:
            calls, self.waiting = self.waiting, []
            for call in calls:
                call()
        with self.changed:
            self.changed.notify_all()

    def translation(self, text: str, options: DecodeOptions) -> Translation:
        others = tuple(Alternative(f"{text} #{i}", -0.5 - i) for i in range(1, options.n_best))
        if not text.strip():
            return Translation("", 0.0, 0, 0)
        answer = f"{self.level}:{text}"
        return Translation(answer, -0.5, 3, 4, alternatives=others, queue_s=0.001, compute_s=0.002)

    def _answer_later(self, future: Future[Translation], text: str, options: DecodeOptions) -> None:
        self.release.wait()
        if future.set_running_or_notify_cancel():
            future.set_result(self.translation(text, options))

    def warm_up(self) -> None:
        self.warm = True

    def release_memory(self) -> None:
        self.released += 1

    def close(self, drain: bool = True) -> None:
        if drain:
            self.wait_for(lambda: self.pending == 0)
        for future in self.futures:
            future.cancel()
        with self.changed:
            self.closed = "drained" if drain else "cancelled"
            self.changed.notify_all()


class FakeFactory:
    """Makes fake translators and remembers them, in the order of loading."""

    def __init__(self) -> None:
        self.made: list[FakeTranslator] = []
        self.fail: dict[str, Exception] = {}
        self.hold_at: dict[str, threading.Event] = {}
        self.asked: list[str] = []
        self.changed = threading.Condition()
        """Notified when a level is added to `asked`."""

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Waits until `condition`, which reads `asked`, holds; fails the test if it never does."""
        wait_for(self.changed, condition)

    def __call__(self, bundle: Path, manifest: Manifest, level: str) -> Any:
        with self.changed:
            self.asked.append(level)
            self.changed.notify_all()
        if level in self.hold_at:
            assert self.hold_at[level].wait(GUARD_S)
        if level in self.fail:
            raise self.fail[level]
        self.made.append(FakeTranslator(level, weights={"shared": 100, level: 10 * len(level)}))
        return self.made[-1]

    def __getitem__(self, level: str) -> FakeTranslator:
        return [t for t in self.made if t.level == level][-1]


FIRST_DEVICE = DeviceUse("cuda:0", reserved=5 * 2**20, budget=80 * 2**20, free=90 * 2**20)
SECOND_DEVICE = DeviceUse("cuda:1", reserved=7, budget=0, free=0)


class FactoryOnDevices(FakeFactory):
    """Levels on two devices, which share a weight on each; `h6` is on a CPU."""

    def __call__(self, bundle: Path, manifest: Manifest, level: str) -> Any:
        made = super().__call__(bundle, manifest, level)
        if level != "h6":
            made.device, made.weights = "cuda:0,cuda:1", {}
            names = {f"{device}/w": 2**20 for device in ("cuda:0", "cuda:1")}
            made.device_bytes = {**names, f"caches {level}": 3 * 2**20}
            made.device_use = (FIRST_DEVICE, SECOND_DEVICE)
        return made


@dataclass
class FakeClock:
    """Seconds that pass only when a test adds them to `now`."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def wait_for(changed: threading.Condition, condition: Callable[[], bool], seconds: float = GUARD_S) -> None:
    """Waits until `condition` holds; fails the test if it never does. changed: notified when it may have changed."""
    with changed:
        assert changed.wait_for(condition, seconds), "never became true"


def eventually(condition: Callable[[], bool], seconds: float = GUARD_S) -> None:
    """Waits until `condition` holds; fails the test if it never does. It asks again and again, so use it only for the
    state of objects that tell nobody when it changes; `FakeTranslator` and `FakeFactory` have `wait_for`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "never became true"
        time.sleep(0.005)


def write_bundle(
    path: Path,
    version: str = "0123456789abcdef",
    levels: tuple[str, ...] = tuple(LEVELS),
    precision: str = "fp32",
    languages: tuple[str, str] = ("en", "de"),
) -> Path:
    """A bundle that validates; its ONNX files hold no graphs."""
    made = []
    for name in levels:
        heads, delta = LEVELS[name]
        layout = HeadLayout.full(ARCHITECTURE.encoder_layers, ARCHITECTURE.decoder_layers, heads)
        graph = _graph(f"{name} {version}")
        files = {p: _write(path / p, graph) for p in (encoder_path(name), decoder_path(name))}
        quality = Quality(
            test_set="synthetic",
            sentences=10,
            beam=4,
            bleu=30.0 + delta,
            chrf=50.0,
            bleu_delta=delta,
            ci_low=delta - 0.1,
            ci_high=delta + 0.1,
            p_value=0.5,
            reference_level="full",
            bleu_signature="bleu signature",
            chrf_signature="chrf signature",
        )
        p95 = 10.0 * heads
        latency = Latency(p50_ms=5.0 * heads, p95_ms=p95, p99_ms=99, batch=1, beam=4, requests=50, machine="test")
        made.append(
            Level(
                name=name,
                precision=precision,  # type: ignore[arg-type]  # one of them
                head_layout=layout.to_json(),
                parameters=1000 * heads,
                bytes=4000 * heads,
                source_checkpoint="0" * 64,
                files=files,
                quality=quality,
                latency=latency,
            )
        )
    manifest = Manifest(
        version=version,
        created_by="test",
        source_language=languages[0],
        target_language=languages[1],
        architecture=ARCHITECTURE,
        tokenizer_sha256=_write(path / TOKENIZER, b"tokenizer"),
        levels=made,
        default_level=levels[0],
    )
    write_manifest(manifest, path)
    return path


def _graph(text: str) -> bytes:
    """An ONNX file without a graph, whose description (field 6 of the model, a string) is `text`."""
    return bytes([6 << 3 | 2, len(text)]) + text.encode()


def _write(path: Path, content: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def failure(call: Callable[[], object]) -> tuple[str, str]:
    """Status code and message of a call that fails."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    return error.code().name, error.details()

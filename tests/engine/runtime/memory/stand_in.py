"""What levels do with the memory of a device, counted in a process over stand-ins for CUDA's libraries.

`python stand_in.py MEASURE BUNDLE` prints a JSON object. Numbers are bytes that are allocated on all devices together.
The stand-ins compute nothing, so made-up answers take the place of what the graphs would write.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import threading
import traceback
import weakref
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import onnxruntime
from experiments.support.counting.parts import every_kind
from experiments.support.counting.steps import answering
from experiments.support.counting.watching import Watch

from hmc.artifact import HmcError, Manifest, read_manifest
from hmc.artifact.bundle.external_data import GraphFile
from hmc.artifact.bundle.manifest import VARIANTS
from hmc.engine.runtime import capture_lock, sessions
from hmc.engine.runtime.bound_steps import BoundStep
from hmc.engine.runtime.device import Device, cuda_available
from hmc.engine.runtime.graphs import Opener
from hmc.engine.runtime.memory import cuda_calls
from hmc.engine.runtime.memory.account import memory_of
from hmc.engine.runtime.sessions import LevelSessions
from hmc.serving import DecodeOptions, Selector, Target, Translator
from hmc.serving.server.app import open_models
from hmc.serving.server.settings import ServerSettings

LEVELS = ("full-fp16", "h36-fp16")
_runtime = ctypes.CDLL("libcudart.so.13")
_runtime.stub_live.restype = ctypes.c_size_t


def live() -> int:
    gc.collect()
    return int(_runtime.stub_live())


def open_all(bundle: Path, manifest: Manifest, level: str, device: Device) -> LevelSessions:
    """A level with every graph open."""
    opened = LevelSessions.open(bundle, manifest.architecture, manifest.level(level), device, 1)
    for variant in VARIANTS:
        if opened.has(variant):
            opened.decoder(variant)
    return opened


def weights(bundle: Path) -> dict[str, object]:
    """Two levels with all graphs: bytes on the device and of one copy of what they use, and what stays at the end."""
    manifest, base = read_manifest(bundle), live()
    one: dict[object, int] = {}
    for level in LEVELS:
        for name in (name for name in manifest.level(level).files if name.endswith(".onnx")):
            for t in GraphFile((bundle / name).read_bytes()).stored():
                one[t.location, t.raw.offset] = t.raw.length
    held = [open_all(bundle, manifest, level, Device("cuda")) for level in LEVELS]
    found = {"held": live() - base, "one": sum(one.values()), "account": memory_of(Device("cuda")).reserved}
    names = [set(sessions.device_weights) for sessions in held]
    found |= {"shared": len(names[0] & names[1]), "on_host": sum(sum(s.weights.values()) for s in held)}
    held.clear()
    return {**found, "left": live() - base, "account_left": memory_of(Device("cuda")).reserved}


def life(bundle: Path) -> dict[str, object]:
    """Bytes after the start of a server, an unload, several reloads, and the end."""
    settings = ServerSettings(device="cuda", levels=("h36-fp16",), default_level="full-fp16")
    host, base, found = open_models({"": bundle}, settings).first, live(), dict[str, object]()
    host.start()
    found["started"] = live() - base
    host.unload("h36-fp16")
    found["unloaded"], reloaded = live() - base, list[int]()
    for _ in range(3):
        host.reload()
        for future in host.cache.leaving():
            future.result(600)
        reloaded.append(live() - base)
    host.close()
    return {**found, "reloaded": reloaded, "closed": live() - base, "account": memory_of(Device("cuda")).reserved}


def budget(bundle: Path) -> dict[str, object]:
    """The error for a level that does not fit, and what it leaves behind."""
    base, said = live(), ""
    try:
        Translator(bundle, LEVELS[0], device="cuda", gpu_memory="3MB")
    except HmcError as error:
        said = str(error)
    return {"said": said, "left": live() - base, "default": memory_of(Device("cuda", 1)).budget}


def replicas(bundle: Path) -> dict[str, object]:
    """Two replicas, as on a machine with two devices."""
    cuda_calls.device_count = lambda: (0, 2)
    manifest, base = read_manifest(bundle), live()
    one = open_all(bundle, manifest, LEVELS[0], Device("cuda", 0))
    alone = live() - base
    del one
    with Translator(bundle, LEVELS[0], device="cuda:0,cuda:1", max_rows=16) as translator:
        found = {
            "device": translator.device,
            "accounts": [use.reserved for use in translator.device_use],
            "weights": sum(size for name, size in translator.device_bytes.items() if not name.startswith("caches")),
        }
        translator.warm_up()
        found["caches"] = [use.reserved for use in translator.device_use]
    return {**found, "alone": alone}


class Outside:
    """Notes what the capture of another thread would not survive outside of a turn on the device: runs, and sessions
    that are opened and freed."""

    def __init__(self) -> None:
        self.seen, self.outside, opened = Counter[str](), list[str](), Opener._session
        watch.listeners.append(lambda _: self.note("run"))

        def noted(opener: Opener, graph: bytes, options: Any, capture: bool = False) -> onnxruntime.InferenceSession:
            session = opened(opener, graph, options, capture)
            self.note("opened")
            weakref.finalize(session._sess, self.note, "freed").atexit = False
            return session

        Opener._session = noted  # type: ignore[assignment, method-assign]

    def note(self, what: str) -> None:
        self.seen[what] += 1
        me = threading.get_ident()
        if me not in capture_lock._lock.sharing and capture_lock._lock.owner != me:
            callers = " > ".join(each.name for each in traceback.extract_stack()[-8:-1])
            self.outside.append(f"{what} by {threading.current_thread().name} in {callers}")


def broken(*_arguments: object, **_options: object) -> None:
    raise ValueError("a test breaks it")


def outside(bundle: Path) -> dict[str, object]:
    """All that opens, runs and frees sessions: requests of every kind, more modes than fit, batches and a load that
    fail, unloading."""
    noted, name = Outside(), LEVELS[1]
    settings = ServerSettings(device="cuda", levels=(name,), default_level=LEVELS[0], max_rows=16)
    host = open_models({"": bundle}, settings).first
    host.start()
    with host.lease(Selector(name=name)) as lease:
        kinds = [(options, target) for options in every_kind(lease.level) for target in (None, Target("A"))]
        kinds += [(DecodeOptions(beam_size=beam), Target("A")) for beam in (1, 2, 3, 5, 6, 7)]

        def errors() -> int:
            futures = [lease.submit("A dog runs.", *kind) for kind in kinds]
            return sum(future.exception(120) is not None for future in futures)

        failed = [errors()]
        with patch.object(BoundStep, "run", broken):
            failed.append(errors())
        failed.append(errors())
    host.unload(name)
    with patch.object(sessions, "encoder_path", broken):  # after the decoder has been opened
        try:
            host.load(name)
        except ValueError:
            noted.seen["loads failed"] += 1
    host.close()
    return {"seen": noted.seen, "outside": noted.outside, "kinds": len(kinds), "failed": failed}


if __name__ == "__main__":
    onnxruntime.set_default_logger_severity(4)
    assert cuda_available()
    watch = Watch()
    watch.begin()
    answering(watch, read_manifest(Path(sys.argv[2])).architecture)
    measures = {function.__name__: function for function in (weights, life, budget, replicas, outside)}
    print(json.dumps(measures[sys.argv[1]](Path(sys.argv[2]))))

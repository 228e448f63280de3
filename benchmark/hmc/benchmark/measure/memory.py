"""Memory and cold start of one level: a new process loads it, translates a few batches, and reports what it took.

`python -m hmc.benchmark.measure.memory` is that process. It reads when it was started and a request, as JSON,
from standard input, and writes the answer as JSON to standard output.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from hmc.artifact.errors import HmcError, ending


@dataclass(frozen=True)
class MemoryRequest:
    """The level that the new process loads, and the sentences that it translates."""

    bundle: str
    level: str
    device: str
    threads: int
    workers: int
    batch: int
    beam: int
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class MemoryResult:
    """Host memory in bytes, and seconds of a cold start."""

    peak_bytes: int
    """Peak resident memory of the process, interpreter and libraries included."""
    before_load_bytes: int
    """Resident memory after all imports and before the level is loaded."""
    held_bytes: int = 0
    """Memory after the last batch. Where the system reports it, the proportional set size (PSS): pages that several
    processes share count in part."""
    cold_start_s: float | None = None
    """From the start of the process to the first translation, of one sentence: interpreter, imports, loading, warm-up.
    Files are read from the system's cache where they are in it."""
    load_s: float | None = None
    """The part of it that loads the level and warms it up."""


def measure_memory(request: MemoryRequest) -> MemoryResult:
    """Runs the request in a new process. Raises HmcError with that process's error message."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "hmc.benchmark.measure.memory"]
    arguments = json.dumps({"began": time.time(), "request": asdict(request)})
    ran = subprocess.run(command, input=arguments, capture_output=True, text=True, check=False, env=environment)
    if ran.returncode != 0:
        last = ran.stderr.strip().splitlines()[-1:]
        said = last[0] if last and ran.returncode > 0 else f"its process {ending(ran.returncode)}"
        raise HmcError(f"the memory of level {request.level!r} could not be measured: {said}")
    return MemoryResult(**json.loads(ran.stdout.splitlines()[-1]))


def peak_bytes() -> int:
    """Peak resident memory of this process so far.

    On Linux it is VmHWM. `ru_maxrss` would be wrong there: it survives `exec`, so a child process starts with the size
    of its parent.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def run_request(request: MemoryRequest, started: float) -> MemoryResult:
    """Loads the level and translates the sentences, in this process.

    started: when the process was started, in seconds since the epoch, as its parent saw it. The system's own answer
    may be wrong by a second.
    """
    from hmc.engine.runtime.process_memory import process_bytes
    from hmc.serving import DecodeOptions, Translator

    before = psutil.Process().memory_info().rss
    began = time.time()
    options = DecodeOptions(beam_size=request.beam)
    with Translator(
        request.bundle, request.level, device=request.device, threads=request.threads, workers=request.workers
    ) as translator:
        translator.warm_up()
        loaded = time.time()
        translator.translate(request.sentences[:1], options, segmentation="none")
        cold = time.time() - started
        for start in range(0, len(request.sentences), request.batch):
            translator.translate(request.sentences[start : start + request.batch], options, segmentation="none")
        return MemoryResult(peak_bytes(), before, process_bytes(), cold, loaded - began)


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    sys.stdout.write(json.dumps(asdict(run_request(MemoryRequest(**asked["request"]), asked["began"]))) + "\n")

"""Memory of one level: a fresh process loads it, translates a few batches, and reports what it held.

`python -m hmc.benchmark.memory` is that process: a request as JSON on its input, the answer as JSON on its output.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from hmc.artifact.errors import HmcError


@dataclass(frozen=True)
class MemoryRequest:
    """What the fresh process does."""

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
    """Host memory in bytes."""

    peak_bytes: int
    """Most resident memory of the process, interpreter and libraries included."""
    before_load_bytes: int
    """Resident memory with everything imported and nothing loaded yet."""
    held_bytes: int = 0
    """Memory after the last batch, pages shared with other processes in proportion (PSS) where the system tells."""


def measure_memory(request: MemoryRequest) -> MemoryResult:
    """Runs the request in a fresh process. Raises HmcError with what that process said."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "hmc.benchmark.memory"]
    given = json.dumps(asdict(request))
    ran = subprocess.run(command, input=given, capture_output=True, text=True, check=False, env=environment)
    if ran.returncode != 0:
        said = ran.stderr.strip().splitlines()[-1:] or [f"exit status {ran.returncode}"]
        raise HmcError(f"the memory of level {request.level!r} could not be measured: {said[0]}")
    return MemoryResult(**json.loads(ran.stdout.splitlines()[-1]))


def peak_bytes() -> int:
    """Most resident memory of this process so far.

    Linux keeps it per program (VmHWM). `ru_maxrss` would not do there: it survives `exec`, so that a child starts with
    the size of the process that started it.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def run_request(request: MemoryRequest) -> MemoryResult:
    """Loads the level and translates the sentences, in this process."""
    from hmc.serving import DecodeOptions, Translator
    from hmc.serving.memory import process_bytes

    before = psutil.Process().memory_info().rss
    with Translator(
        request.bundle, request.level, device=request.device, threads=request.threads, workers=request.workers
    ) as translator:
        translator.warm_up()
        for start in range(0, len(request.sentences), request.batch):
            options = DecodeOptions(beam_size=request.beam)
            translator.translate(request.sentences[start : start + request.batch], options)
        return MemoryResult(peak_bytes(), before, process_bytes())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(run_request(MemoryRequest(**json.load(sys.stdin))))) + "\n")

"""Memory of the process: limits of glibc's heaps."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.processes import ROOTS

COUNT = """
import ctypes, sys, threading
from hmc.engine.runtime.process_memory import limit_heaps

libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fdopen.restype = ctypes.c_void_p
if sys.argv[1] == "limited":
    limit_heaps()
threads = int(sys.argv[2])
barrier = threading.Barrier(threads + 1)

def use_heap():
    libc.malloc(ctypes.c_size_t(1000))
    barrier.wait()
    barrier.wait()

for _ in range(threads):
    threading.Thread(target=use_heap).start()
barrier.wait()
stream = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, stream)
libc.fflush(stream)
barrier.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc is on Linux")
@pytest.mark.parametrize("limit", ["limited", "not limited"])
def test_threads_share_a_limited_number_of_heaps(limit: str) -> None:
    cores = max(2, os.cpu_count() or 1)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, ROOTS))}
    command = [sys.executable, "-c", COUNT, limit, str(3 * cores)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    heaps = ran.stdout.count("<heap nr=")
    assert 0 < heaps <= cores if limit == "limited" else heaps > cores

"""Memory of training on a CPU: few compiled kernels are kept, so memory does not grow with the shapes of batches."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from hmc.training.runs.processes import CACHE_SIZES, CACHED_KERNELS, configure_memory

PRODUCTS_OF_MANY_SHAPES = """
import ctypes, sys
from hmc.training.runs.processes import configure_memory
if sys.argv[1] == "bounded":
    configure_memory()
import torch
from hmc.training.model.cpu import _product
class Info(ctypes.Structure):
    _fields_ = [(n, ctypes.c_size_t) for n in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
weight = torch.ones(64, 32, dtype=torch.bfloat16)
def used(rows):
    for n in rows:
        _product(torch.ones(n, 32, dtype=torch.bfloat16), weight)
    info = libc.mallinfo2()
    return info.uordblks + info.hblkhd
before = used(range(1, 200))
print(used(range(200, 800)) - before)
"""


def grown(how: str) -> int:
    """Bytes that 600 products of new shapes leave allocated, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name not in CACHE_SIZES}
    environment |= {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        [sys.executable, "-c", PRODUCTS_OF_MANY_SHAPES, how],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(finished.stdout)


@pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX512") or sys.platform != "linux",
    reason="oneDNN compiles these products for AVX-512",
)
def test_products_of_many_shapes_do_not_fill_memory() -> None:
    unbounded, bounded = grown("unbounded"), grown("bounded")
    assert bounded < 4 * 2**20 < unbounded


@pytest.mark.parametrize("name", CACHE_SIZES)
def test_a_number_of_kernels_that_the_user_set_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "7")
    configure_memory()
    assert os.environ[name] == "7"
    monkeypatch.delenv(name)
    configure_memory()
    assert os.environ[name] == str(CACHED_KERNELS)

"""The processes of a run: how they start, the folder they share, which of them reports, and their random numbers."""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from hmc.artifact.errors import DeviceUnavailableError, HmcError, InvalidRequestError, RetryableError, ending
from hmc.artifact.stopping import Stopped, at_once, defer_from_now, noted
from hmc.training.model.cpu import leave_out_cudnn
from hmc.training.runs.recipe import RunSection

WAIT_SECONDS = 90.0
"""How long a file of the first process may take to be seen: NFS remembers for a minute that a folder was missing."""
INTERVAL_SECONDS = 0.2
CACHED_KERNELS = 64
"""Compiled kernels in each of two caches, by default 1024.

oneDNN compiles a kernel for every shape of a product. Batches of many lengths have so many shapes that 1024 kernels
take gigabytes, and hardly any of them is used in a later update again. This number covers the shapes of one update.
"""
CACHE_SIZES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Environment variables: sizes of oneDNN's own cache, and of the cache in PyTorch's binding to oneDNN (ideep)."""
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_LARGEST = 2**31 - 1
PREPARING = timedelta(days=1)
"""For which processes wait for what the first one does alone, such as tokens of the text; for updates 30 minutes."""
LOST = ("closed by peer", "reset by peer", "Broken pipe", "remote process exited")
"""What PyTorch's errors say where the connection to another process is lost."""
GRACE_SECONDS = {True: 10.0, False: 120.0}
"""Whether a process was killed → how long the first one may go on without it. It ends by itself where it waits for the
other one; a process that was not killed said itself why it ended."""
NOTICE_SECONDS = 2.0
"""How long after a connection is lost the system may take to say that the process at its other end has ended."""
OLDEST_COMPILED = (7, 0)
"""Oldest compute capability that Triton, in which `torch.compile` writes kernels, supports."""


def make_fabric(run: RunSection) -> Fabric:
    """Returns a launched Fabric for the run's device, precision and processes.

    Raises DeviceUnavailableError when cuda is asked for and absent, or run.compile without a device that it works on;
    InvalidRequestError when a launcher (torchrun) started another number of processes than the run has.
    """
    check_device(run)
    configure_memory()
    leave_out_cudnn()
    if run.devices * run.nodes > 1:
        defer_from_now()
    fabric = Fabric(accelerator=run.device, precision=run.precision, devices=run.devices, num_nodes=run.nodes)
    fabric.launch()
    if fabric.world_size > 1:
        atexit.register(leave_processes)
        _children[:] = getattr(fabric.strategy.launcher, "procs", ())
    if _children:
        for thread in threading.enumerate():
            if thread.name == "child-process-observer":  # Fabric's own: it would kill this process without a word
                thread._child_processes = []  # type: ignore[attr-defined]
        threading.Thread(target=_end_without, args=(tuple(_children),), name="hmc-processes", daemon=True).start()
    return fabric


_children: list[subprocess.Popen[bytes]] = []
"""The further processes that this one started. Empty in those, and where a launcher started all of them."""


@contextmanager
def naming_lost_processes() -> Iterator[None]:
    """A context around a run. If the connection to another process of the run is lost, the error says how that process
    ended.

    Raises RetryableError in the first process, which reports for all, and SystemExit in the processes that it started.
    """
    parent = os.getppid()
    try:
        yield
    except RuntimeError as error:
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        if not several or not any(words in str(error) for words in LOST):
            raise
        end = time.monotonic() + NOTICE_SECONDS
        while os.getppid() == parent and not any(child.poll() for child in _children) and time.monotonic() < end:
            time.sleep(0.05)
        launcher = "TORCHELASTIC_RUN_ID" in os.environ
        if not launcher and not _children and os.getppid() == parent:
            raise SystemExit(1) from error
        raise RetryableError(_lost(_children)) from error


def _lost(children: Sequence[subprocess.Popen[bytes]]) -> str:
    """Which processes ended and how."""
    ended = [child for child in children if child.poll()]
    said = [f"process {children.index(child) + 1} of the run {ending(child.returncode)}" for child in ended]
    first = "; ".join(said) or "the connection to another process of the run is lost, which ended or was killed"
    return f"{first}. What was saved stays, and the same command goes on from there"


def _end_without(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends this process if another one has ended and this one does not notice, since it does not wait for it now."""
    while not (ended := [child for child in children if child.poll()]):
        if all(child.returncode == 0 for child in children):
            return
        time.sleep(INTERVAL_SECONDS)
    time.sleep(GRACE_SECONDS[any(child.returncode < 0 for child in ended)])
    with suppress(OSError):
        sys.stderr.write(f"hmc: {_lost(children)}\n")
    for child in children:
        child.kill()
    os._exit(75)  # EX_TEMPFAIL, as for a RetryableError


def check_device(run: RunSection) -> None:
    """Raises as `make_fabric`, which comes after the work of preparing a run."""
    check_processes(run)
    has_cuda = torch.cuda.is_available()
    if run.device == "cuda" and not has_cuda:
        raise DeviceUnavailableError(
            "run.device = cuda, but PyTorch sees no CUDA device; use device = 'cpu' or install a CUDA build"
        )
    if run.compile:
        check_compilable(torch.device("cuda" if has_cuda and run.device != "cpu" else "cpu"))


def computes_bf16(run: RunSection) -> bool:
    """Whether the device of a run has products of bf16. A CPU without AVX-512 does not have them: PyTorch takes seven
    times as long there as for products of fp32 (Zen 3)."""
    on_cuda = run.device != "cpu" and torch.cuda.is_available()
    return on_cuda or torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def check_processes(run: RunSection) -> None:
    """Raises InvalidRequestError when a launcher started another number of processes than the run has.

    Otherwise each process would be a run of its own in the same folder.
    """
    started = os.environ.get("WORLD_SIZE", "1")
    wanted = run.devices * run.nodes
    if started not in ("1", str(wanted)):
        raise InvalidRequestError(
            f"{started} processes were started (WORLD_SIZE), but the run needs {wanted} (run.devices × run.nodes). "
            "hmc train: give run.devices (processes per node) and run.nodes; hmc prune: start it without "
            "torchrun"
        )


def check_compilable(device: torch.device) -> None:
    """Raises DeviceUnavailableError unless `torch.compile` can compile the loss for the device.

    A CPU trains with operations of HMC's own (`hmc.training.model.cpu`), which the compiler would break up.
    """
    if device.type != "cuda":
        raise DeviceUnavailableError(
            f"run.compile is for CUDA devices, and this run is on {device.type}, which has fast operations of its own; "
            "leave run.compile out"
        )
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < OLDEST_COMPILED:
        raise DeviceUnavailableError(
            f"run.compile needs a GPU of compute capability {'.'.join(map(str, OLDEST_COMPILED))}, and "
            f"{torch.cuda.get_device_name(device)} has {major}.{minor}; leave run.compile out"
        )
    if find_spec("triton") is None:
        raise DeviceUnavailableError(
            "run.compile needs Triton, which is not installed: install it (`pip install triton`) or leave "
            "run.compile out"
        )


def configure_memory() -> None:
    """Sets up memory for training; affects the whole process. Call it before the first product of matrices.

    glibc keeps freed memory for the next update instead of returning it to the kernel: page faults were about 20 % of
    an update. Both caches keep `CACHED_KERNELS` kernels, unless an environment variable already sets another number.
    The libraries read these variables once, at their first product.
    """
    for name in CACHE_SIZES:
        os.environ.setdefault(name, str(CACHED_KERNELS))
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, 2**30)
        libc.mallopt(_TRIM_THRESHOLD, _LARGEST)


def check_shared(fabric: Fabric, out: Path, nodes: int) -> None:
    """Writes a file into the run folder `out`, makes the folder, and waits until every process has seen the file.

    All processes must call it; with one node it does nothing. Raises InvalidRequestError in all processes if one
    process does not see the file. Its node would otherwise train another vocabulary, and resume from another state or
    from no state.
    """
    if nodes == 1:
        return
    number = torch.tensor(secrets.randbelow(2**62), device=fabric.device)
    marker = out / f".shared-{int(_gathered(fabric, number)[0]):016x}"
    if fabric.is_global_zero:
        out.mkdir(parents=True, exist_ok=True)
        marker.touch()
    fabric.barrier()
    seen = torch.tensor(int(_appears(marker)), device=fabric.device)
    blind = [rank for rank, value in enumerate(_gathered(fabric, seen).tolist()) if not value]
    if fabric.is_global_zero:
        marker.unlink()
    if blind:
        here = f"this is process {fabric.global_rank}, on {platform.node()}, and {out} is {out.absolute()} here"
        raise InvalidRequestError(
            f"process {', '.join(map(str, blind))} of {fabric.world_size} does not see what process 0 writes to {out} "
            f"({here}): a run on several nodes needs a folder that all of them share; choose such a folder"
        )


def _gathered(fabric: Fabric, value: torch.Tensor) -> torch.Tensor:
    gathered: Any = fabric.all_gather(value)
    return torch.as_tensor(gathered).flatten().cpu()


def _appears(marker: Path) -> bool:
    """Whether the file is there before the wait ends."""
    end = time.monotonic() + WAIT_SECONDS
    while not marker.exists():
        if time.monotonic() > end:
            return False
        time.sleep(INTERVAL_SECONDS)
    return True


@contextmanager
def first_process_first(fabric: Fabric, *, stops: bool = False) -> Iterator[None]:
    """Runs the body in the first process, and then in all other processes. If it fails in the first process, it fails
    in all.

    All processes must enter it. In the other processes it raises HmcError with the message of the first process. stops:
    a signal to the first process ends the body at once, and raises `Stopped` in all processes; else it ends as
    `hmc.artifact.stopping` says.
    """
    group = _patient() if fabric.world_size > 1 else None
    if fabric.global_rank and (problem := _from_first(group)):
        raise Stopped(problem) if isinstance(problem, int) else HmcError(problem)
    try:
        with at_once() if stops and fabric.is_global_zero else nullcontext():
            yield
    except Stopped as stopped:
        if fabric.is_global_zero:
            _from_first(group, stopped.number)
        raise
    except Exception as error:
        if fabric.is_global_zero:
            _from_first(group, f"the first process stopped: {str(error) or type(error).__name__}")
        raise
    if fabric.is_global_zero:
        _from_first(group)


@cache
def _patient() -> Any:
    """All processes, as a group that waits for PREPARING. All of them must ask for it first at the same time."""
    return torch.distributed.new_group(backend="gloo", timeout=PREPARING)


def _from_first(group: Any, value: str | int | None = None) -> str | int | None:
    """Sends a value of the first process of the group to the others; returns it in all."""
    if group is None:
        return value
    values = [value]
    torch.distributed.broadcast_object_list(values, src=0, group=group)
    return values[0]


def noted_anywhere(fabric: Fabric) -> int:
    """The number of a signal that was noted in any process; 0 for none. All processes must call it; all get the same.

    No GPU is waited for: the numbers go over CPUs.
    """
    if fabric.world_size == 1:
        return noted()
    number = torch.tensor(noted())
    torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX, group=_patient())
    return int(number)


def is_first_process() -> bool:
    """True in the only process, or the first of several: the one that prints results."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def leave_processes() -> None:
    """Leaves the process group. At interpreter exit its threads might otherwise use objects that are already gone."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def seed_process(fabric: Fabric, seed: int) -> None:
    """Seeds PyTorch differently in every process except the first, which goes on with its random numbers.

    Call it after the weights are initialised: weights must be equal in all processes, dropout and sampled gates must
    differ.
    """
    if fabric.global_rank:
        torch.manual_seed(seed + 1_000_003 * fabric.global_rank)


def random_states(fabric: Fabric) -> dict[str, Tensor]:
    """Returns the states of the random-number generators of all processes: `cpu`, `cpu.1`, …, `cuda`, `cuda.1`, …

    All processes must call it; all get the same result.
    """
    states = {"cpu": torch.get_rng_state()}
    if fabric.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state()
    if fabric.world_size == 1:
        return states
    gathered: dict[str, Tensor] = {}
    for name, state in states.items():
        rows: Any = fabric.all_gather(state.to(fabric.device))
        for rank, row in enumerate(rows.cpu()):
            gathered[_name(name, rank)] = row.contiguous()
    return gathered


def restore_random_state(states: dict[str, Tensor], rank: int) -> None:
    """Sets the generators of this process to their states in a result of `random_states`."""
    torch.set_rng_state(states[_name("cpu", rank)])
    if _name("cuda", rank) in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[_name("cuda", rank)])


def saved_processes(states: dict[str, Tensor]) -> int:
    """Returns the number of processes of a result of `random_states`."""
    return sum(name.partition(".")[0] == "cpu" for name in states)


def _name(device: str, rank: int) -> str:
    return f"{device}.{rank}" if rank else device

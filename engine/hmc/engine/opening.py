"""Opens a level of a bundle: resolves devices and the division of the cores, and starts the level's engine."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hmc.artifact.bundle.manifest import Level, Manifest
from hmc.artifact.errors import InvalidRequestError
from hmc.engine.native import library
from hmc.engine.requests.options import MAX_TOKENS
from hmc.engine.runtime.device import Device, resolve_devices
from hmc.engine.runtime.memory.account import memory_of, parse_budget
from hmc.engine.runtime.packed_weights import cache_folder
from hmc.engine.runtime.programs import ProgramSessions
from hmc.engine.runtime.sessions import LevelSessions, in_device_form
from hmc.engine.runtime.threads import check_threads
from hmc.engine.scheduling.division import Division, given_division, measured_division
from hmc.engine.scheduling.engine import Engine, rows_of_worker
from hmc.engine.support import EXECUTORS, AnyExecutor, CudaAttention, Executor, executor_of


@dataclass(frozen=True)
class EngineSettings:
    """How a level runs. Raises InvalidRequestError if a value is out of range."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:N, or several such as cuda:0,cuda:1, of which each gets a replica; `max_rows` and
    `max_tokens` are those of each."""
    threads: int = 0
    """Of each worker. 0 and no `workers`: what this machine is measured to do best with this level
    (`measured_division`), remembered in `cache`; without one, a worker with a thread per physical core. Threads alone:
    one worker; workers alone: a thread for each, or all cores for a single one."""
    workers: int = 0
    """Batches that run at the same time on a CPU, each on threads of its own. Several give more throughput; one
    sentence alone runs in one of them only."""
    queue_size: int = 1024
    """Sentences that may wait."""
    max_rows: int = 128
    """Hypotheses decoded together, divided among the workers."""
    max_tokens: int = MAX_TOKENS
    """Bounds the memory of caches, in rows × the positions that the longest sentence of their batch may need; a
    sentence that needs more runs alone. Divided among the workers."""
    cache: str = "auto"
    """Folder where weights are kept in the layout that this machine's kernels want, which levels and processes then
    share in memory. `auto`: the value of HMC_CACHE, or the platform's cache folder; `none` keeps nothing."""
    gpu_memory: str | None = None
    """The most memory that all levels of this process may reserve on each CUDA device, such as 8GiB or 80% of what was
    free at first; the last value given counts. None: as it is, at first 80%."""
    gpu_attention: CudaAttention = "plain"
    """How CUDA computes attention (`hmc.engine.runtime.device.SDPA_KERNELS`)."""
    executor: AnyExecutor = "auto"
    """What runs the level: `onnxruntime` its graphs, `native` its step program in C, or `reference` that program in
    NumPy, which is some hundred times slower (`hmc.engine.support`). `auto`: see `executor_of`."""

    def __post_init__(self) -> None:
        if self.executor not in ("auto", *EXECUTORS):
            raise InvalidRequestError(f"executor {self.executor!r}: choose auto, {', '.join(EXECUTORS)}")
        check_threads(self.threads, self.workers)
        if self.gpu_memory is not None:
            parse_budget(self.gpu_memory)
        rows_of_worker(self.max_rows, max(self.workers, 1))


def open_engine(bundle: Path, manifest: Manifest, level: Level, settings: EngineSettings) -> Engine:
    """Opens a level of a validated bundle, and starts its engine.

    Raises InvalidArtifactError, DeviceUnavailableError, FailedPreconditionError if the level does not fit into a
    device's memory or a file has changed since the bundle was validated, and InvalidRequestError for an executor that
    cannot run the level.
    """
    chosen = _devices(level, settings)
    on_cpu = [device.kind for device in chosen] == ["cpu"]
    executor = executor_of(level, settings.executor, cpu=on_cpu, native=library.best() is not None)
    _limit_memory(chosen, settings.gpu_memory)
    folder = cache_folder(settings.cache)
    opens = partial(_sessions, bundle, manifest, level, settings, executor, folder)
    division = given_division(settings.threads, settings.workers)
    measured = executor != "reference" and (settings.threads, settings.workers) == (0, 0)
    if measured and folder and on_cpu and not in_device_form(level):
        division = measured_division(level, partial(opens, chosen[0]), folder, settings.max_rows, executor)
    with ExitStack() as failed:
        sessions = []
        for device in chosen:
            sessions.append(opens(device, division))
            failed.callback(sessions[-1].close)
        engine = Engine(
            sessions,
            queue_size=settings.queue_size,
            max_rows=settings.max_rows,
            max_tokens=settings.max_tokens,
            workers=division.workers,
        )
        failed.pop_all()
    return engine


def _devices(level: Level, settings: EngineSettings) -> list[Device]:
    if settings.executor not in ("native", "reference"):
        return resolve_devices(settings.device, level)
    if settings.device not in ("auto", "cpu"):
        raise InvalidRequestError(
            f"executor {settings.executor} runs on a CPU: choose device cpu, not {settings.device}"
        )
    return [Device("cpu")]


def _limit_memory(devices: list[Device], gpu_memory: str | None) -> None:
    if gpu_memory is None:
        return
    budget = parse_budget(gpu_memory)
    for device in devices:
        if device.kind != "cpu":
            memory_of(device).limit(budget)


def _sessions(
    bundle: Path,
    manifest: Manifest,
    level: Level,
    settings: EngineSettings,
    executor: Executor,
    folder: Path | None,
    device: Device,
    division: Division,
) -> LevelSessions:
    arch = manifest.architecture
    if executor != "onnxruntime":
        return ProgramSessions.open_program(bundle, arch, level, manifest.digests, executor, division.threads)
    return LevelSessions.open(
        bundle, arch, level, device, division.threads, folder, division.workers, attention=settings.gpu_attention
    )

"""The devices of a level: what their names mean, and how ONNX Runtime is to use CUDA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hmc.artifact.bundle.manifest import Level
from hmc.artifact.errors import DeviceUnavailableError, InvalidRequestError
from hmc.artifact.precisions import PRECISIONS, names_for
from hmc.engine.runtime.cuda_libraries import cuda_problem
from hmc.engine.support import CudaAttention


@dataclass(frozen=True)
class Device:
    """A device that a level can run on."""

    kind: str
    """`cpu` or `cuda`."""
    index: int = 0
    """Index of the CUDA device."""

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"{self.kind}:{self.index}"


def resolve_devices(names: str, level: Level) -> list[Device]:
    """Resolves `names` to the devices of a level: `auto`, `cpu`, `cuda`, `cuda:N`, or several such as `cuda:0,cuda:1`.

    `auto` means the device for which the precision of the level is made. Raises InvalidRequestError for any other name,
    for a device named twice, and for CUDA if the level is made for a CPU. Raises DeviceUnavailableError, which says
    what is missing, if a device cannot be used, and if `names` is `cpu` but the level is made for CUDA.
    """
    asked = parse_devices(names)
    made_for = PRECISIONS[level.precision].device
    if asked == ["cpu"] or (asked == ["auto"] and made_for == "cpu"):
        if made_for == "cuda":
            raise DeviceUnavailableError(
                f"level {level.name!r} is {level.precision}, which is for cuda; on cpu choose a level in "
                f"{names_for('cpu')} (`hmc levels BUNDLE` lists them)"
            )
        return [Device("cpu")]
    devices = [Device("cuda", int(name.partition(":")[2] or 0)) for name in asked]
    for device in devices:
        problem = cuda_problem(device.index)
        if problem is not None:
            raise DeviceUnavailableError(
                f"level {level.name!r} on {names}: {problem}. Or use the cpu with a level in {names_for('cpu')}"
            )
    if made_for == "cpu":
        raise InvalidRequestError(
            f"level {level.name!r} is {level.precision}, which is for cpu; compile it in "
            f"{names_for('cuda')} to serve it on cuda"
        )
    return devices


def resolve_device(name: str, level: Level) -> Device:
    """The only device that `name` means for a level. Errors: see `resolve_devices`; also InvalidRequestError for
    several."""
    devices = resolve_devices(name, level)
    if len(devices) > 1:
        raise InvalidRequestError(f"device {name!r}: choose one")
    return devices[0]


def parse_devices(names: str) -> list[str]:
    """The devices that a user names, in order. Raises InvalidRequestError, see `resolve_devices`."""
    stripped = [name.strip() for name in names.split(",")]
    several = len(stripped) > 1
    for name in stripped:
        kind, _, index = name.partition(":")
        fits = kind in (("cuda",) if several else ("auto", "cpu", "cuda"))
        if not fits or (":" in name and not (kind == "cuda" and index.isdecimal())):
            raise InvalidRequestError(
                f"device {names!r}: choose auto, cpu, cuda, cuda:N or several such as cuda:0,cuda:1"
            )
    numbers = [int(name.partition(":")[2] or 0) for name in stripped]
    if len(set(numbers)) < len(numbers):
        raise InvalidRequestError(f"device {names!r}: name each device once")
    return stripped


SDPA_KERNELS: Mapping[CudaAttention, int] = MappingProxyType({"plain": 17, "efficient": 19, "cudnn": 25})
"""How attention is computed on CUDA → ONNX Runtime's bits for `sdpa_kernel` (1 flash attention, 2 memory-efficient
attention, 8 cuDNN, 16 separate products and softmax). "plain" builds nothing for a new shape. "cudnn" builds a plan for
each exact shape, keeps it, and needs fewer kernels a step."""


def cuda_options(device: Device, attention: CudaAttention = "plain", *, capture: bool = False) -> dict[str, str]:
    """Options of ONNX Runtime's CUDA provider for the sessions of a level.

    capture: the session records its runs as CUDA graphs; every run then names its graph by the run option
    `gpu_graph_id` (-1: not recorded). Arenas grow by the requested bytes, so that little memory lies idle.
    """
    return {
        "device_id": str(device.index),
        "arena_extend_strategy": "kSameAsRequested",
        "sdpa_kernel": str(SDPA_KERNELS[attention]),
        "enable_cuda_graph": "1" if capture else "0",
    }


def cuda_available() -> bool:
    """Whether ONNX Runtime can use a CUDA device; `cuda_problem` says why not."""
    return cuda_problem() is None

"""Which executor does what: options of a request, forms of a model and precisions × executors.

`docs/executors.md` prints it. All executors have every option. A level whose precision its executor does not run is
refused when it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Literal, get_args

from hmc.artifact.precisions import Precision

if TYPE_CHECKING:
    from hmc.artifact.bundle.manifest import Level

Executor = Literal["onnxruntime", "native", "reference"]
"""What runs a level: `onnxruntime` its graphs, `native` its step program in C, `reference` the same in NumPy."""
EXECUTORS: tuple[Executor, ...] = get_args(Executor)
AnyExecutor = Executor | Literal["auto"]
"""`auto`: the one that is best for the level on this machine."""
CudaAttention = Literal["plain", "efficient", "cudnn"]
"""How ONNX Runtime computes attention on CUDA; see `hmc.engine.runtime.device.SDPA_KERNELS`."""


def executor_of(level: Level, asked: AnyExecutor, *, cpu: bool, native: bool) -> Executor:
    """The executor of a level. "auto" means the native executor for int8 on a CPU, if it was built (`native`) and the
    level has a program, and otherwise ONNX Runtime. No batch and no measurement changes the choice, so two servers of
    one kind give the same answers."""
    from hmc.artifact.program.operations import program_path

    if asked != "auto":
        return asked
    runs = level.precision == "int8" and program_path(level.name) in level.files
    return "native" if cpu and native and runs else "onnxruntime"


class Place(Enum):
    """Where something is done."""

    INSIDE = "inside"
    """In the executor."""
    HOST = "host"
    """The executor gives candidates, and the search on the host chooses among them, step by step."""


INSIDE = Place.INSIDE
HOST = Place.HOST

OPTIONS: Mapping[str, Mapping[Executor, Place]] = {
    "greedy search, beams up to 16, n-best": {"onnxruntime": HOST, "native": INSIDE, "reference": HOST},
    "lengths, length penalty, patience": {"onnxruntime": HOST, "native": INSIDE, "reference": HOST},
    "target prefix": {"onnxruntime": HOST, "native": HOST, "reference": HOST},
    "scoring a given translation": {"onnxruntime": HOST, "native": HOST, "reference": HOST},
    "suppressed tokens and phrases, n-grams": {"onnxruntime": HOST, "native": HOST, "reference": HOST},
    "repetition penalty": {"onnxruntime": INSIDE, "native": INSIDE, "reference": INSIDE},
    "alignment, coverage penalty": {"onnxruntime": INSIDE, "native": INSIDE, "reference": INSIDE},
    "token scores": {"onnxruntime": INSIDE, "native": INSIDE, "reference": INSIDE},
    "sampling among all tokens": {"onnxruntime": INSIDE, "native": INSIDE, "reference": INSIDE},
    "sampling with top-k and top-p": {"onnxruntime": HOST, "native": HOST, "reference": HOST},
    "vocabulary shortlists": {"onnxruntime": INSIDE, "native": INSIDE, "reference": INSIDE},
    "pieces of a translation while it is searched for": {"onnxruntime": HOST, "native": HOST, "reference": HOST},
}
"""Of graphs in host form. On CUDA, graphs in device form search inside where nothing else is asked for."""

PRECISIONS_OF: Mapping[Executor, tuple[Precision, ...]] = {
    "onnxruntime": ("fp32", "fp16", "bf16", "int8", "int4"),
    "native": ("fp32", "int8"),
    "reference": ("fp32", "fp16", "bf16", "int8"),
}
"""Precisions of the levels that an executor runs. `Architecture` has no field that one of them does not know."""

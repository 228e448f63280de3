"""Which executor does what: options of a request, forms of a model and precisions × executors.

`docs/executors.md` prints it. Both executors have every option. A level whose precision its executor does not run is
refused when it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Literal, get_args

from hmc.artifact.precisions import Precision

Executor = Literal["onnxruntime", "reference"]
"""What runs a level: `onnxruntime` its graphs, `reference` its step program in NumPy."""
EXECUTORS: tuple[Executor, ...] = get_args(Executor)


class Place(Enum):
    """Where something is done."""

    INSIDE = "inside"
    """In the executor."""
    HOST = "host"
    """The executor gives candidates, and the search on the host chooses among them, step by step."""


INSIDE, HOST = Place.INSIDE, Place.HOST

OPTIONS: Mapping[str, Mapping[Executor, Place]] = {
    "greedy search, beams up to 16, n-best": {"onnxruntime": HOST, "reference": HOST},
    "lengths, length penalty, patience": {"onnxruntime": HOST, "reference": HOST},
    "target prefix": {"onnxruntime": HOST, "reference": HOST},
    "scoring a given translation": {"onnxruntime": HOST, "reference": HOST},
    "suppressed tokens and phrases, n-grams": {"onnxruntime": HOST, "reference": HOST},
    "repetition penalty": {"onnxruntime": INSIDE, "reference": INSIDE},
    "alignment, coverage penalty": {"onnxruntime": INSIDE, "reference": INSIDE},
    "token scores": {"onnxruntime": INSIDE, "reference": INSIDE},
    "sampling among all tokens": {"onnxruntime": INSIDE, "reference": INSIDE},
    "sampling with top-k and top-p": {"onnxruntime": HOST, "reference": HOST},
    "vocabulary shortlists": {"onnxruntime": INSIDE, "reference": INSIDE},
    "pieces of a translation while it is searched for": {"onnxruntime": HOST, "reference": HOST},
}
"""Of graphs in host form. On CUDA, graphs in device form search inside where nothing else is asked for."""

PRECISIONS_OF: Mapping[Executor, tuple[Precision, ...]] = {
    "onnxruntime": ("fp32", "fp16", "bf16", "int8", "int4"),
    "reference": ("fp32", "fp16", "bf16", "int8"),
}
"""Precisions of the levels that an executor runs. `Architecture` has no field that one of them does not know."""

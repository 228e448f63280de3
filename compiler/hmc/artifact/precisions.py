"""Precisions: one table of the number formats that a level can be compiled to. Standard library only.

To add a precision, add its name to `Precision` and its row to `PRECISIONS`; then teach `hmc.compiler.precisions` to
write its linear layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from hmc.artifact.errors import InvalidRequestError

Precision = Literal["fp32", "int8", "int4", "fp16", "bf16"]
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class PrecisionTraits:
    """The properties of one precision that the rest of HMC uses."""

    device: Device
    """Where its levels run."""
    floats: str
    """NumPy's name of the type of activations; and of weights, unless these are quantised."""
    quantised: bool
    """Whether weights are integers. Such a level needs sentences to calibrate activation ranges on."""
    shortlists: bool
    """Whether its levels may have a twin with vocabulary shortlists: the output projection must add up exactly, as
    integers do, so that a result does not depend on the other sentences of the batch."""
    bytes_each: float
    """Bytes of a weight of a linear layer."""
    rank: int
    """Sorts precisions from the most exact (0) to the least."""
    label: str
    """For help texts and legends."""
    runs_on_cpu: bool = True
    """Whether ONNX Runtime has its operators on CPUs too: there its levels are run once when they are compiled."""


PRECISIONS: Mapping[Precision, PrecisionTraits] = MappingProxyType(
    {
        "fp32": PrecisionTraits(
            "cpu", "float32", quantised=False, shortlists=False, bytes_each=4.0, rank=0, label="32-bit floats"
        ),
        "int8": PrecisionTraits(
            "cpu", "float32", quantised=True, shortlists=True, bytes_each=1.0, rank=3, label="8-bit integers"
        ),
        "int4": PrecisionTraits(
            "cpu", "float32", quantised=True, shortlists=True, bytes_each=0.5, rank=4, label="4-bit integers"
        ),
        "fp16": PrecisionTraits(
            "cuda", "float16", quantised=False, shortlists=False, bytes_each=2.0, rank=1, label="16-bit floats"
        ),
        "bf16": PrecisionTraits(
            "cuda",
            "bfloat16",
            quantised=False,
            shortlists=False,
            bytes_each=2.0,
            rank=2,
            label="bfloat16",
            runs_on_cpu=False,
        ),
    }
)
"""Every precision, in the order in which messages list them."""


def precision_named(word: str) -> Precision:
    """The precision called `word`. Raises InvalidRequestError that lists all names."""
    for precision in PRECISIONS:
        if precision == word:
            return precision
    raise InvalidRequestError(f"precision {word!r}: choose {', '.join(PRECISIONS)}")


def names_for(device: Device) -> str:
    """The precisions whose levels run on `device`, for messages: `fp32, int8 or int4`."""
    *most, last = (name for name, traits in PRECISIONS.items() if traits.device == device)
    return f"{', '.join(most)} or {last}"

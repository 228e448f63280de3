"""The compiled library: its structures, and which of its builds this processor runs."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from hmc.engine.native.build import library_name

INTERFACE = 6
"""Of the C functions; a library of another interface is not used."""
FOLDER = Path(__file__).parent / "built"
"""Where the build puts the libraries."""
NEEDS = {
    "vnni": {"avx2", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"},
    "avx2": {"avx2"},
    "dotprod": {"asimddp"},
    "neon": {"asimd"},
}
"""Build → the instruction sets that it needs, by Linux's names; the fastest build first. Their results are equal bit
for bit."""
NO_MEMORY = -1
BAD_ARGUMENT = -2


class RangeStruct(Structure):
    """`hmc_range`."""

    _fields_ = [("quantised", c_int32), ("zero", c_int32), ("is_signed", c_int32), ("scale", c_float)]


class MatrixStruct(Structure):
    """`hmc_matrix`."""

    _fields_ = [("weight", c_void_p), ("scales", c_void_p), ("bias", c_void_p), ("outputs", c_int32)]


class OperationStruct(Structure):
    """`hmc_operation`."""

    _fields_ = [
        ("kind", c_int32),
        ("input", c_int32),
        ("output", c_int32),
        ("parts", c_int32),
        ("residual", c_int32),
        ("sum_output", c_int32),
        ("norm_output", c_int32),
        ("sum_bias", c_void_p),
        ("norm_weight", c_void_p),
        ("norm_bias", c_void_p),
        ("epsilon", c_float),
        ("matrices", c_int32),
        ("inputs", c_int32),
        ("outputs", c_int32),
        ("activation", c_int32),
        ("matrix", POINTER(MatrixStruct)),
        ("range", RangeStruct),
        ("table_is_int8", c_int32),
        ("table", c_void_p),
        ("table_scales", c_void_p),
        ("positions", c_void_p),
        ("factor", c_float),
        ("heads", c_int32),
        ("width", c_int32),
        ("plane", c_int32),
        ("scale", c_float),
        ("score_factor", c_float),
        ("value_factor", c_float),
        ("query", RangeStruct),
        ("key", RangeStruct),
        ("value", RangeStruct),
        ("block", c_int32),
    ]


class ProgramStruct(Structure):
    """`hmc_program`."""

    _fields_ = [
        ("vocabulary", c_int32),
        ("positions", c_int32),
        ("source_vocabulary", c_int32),
        ("pad", c_int32),
        ("eos", c_int32),
        ("start", c_int32),
        ("listed", c_int32),
        ("values", c_int32),
        ("widths", POINTER(c_int32)),
        ("encode_count", c_int32),
        ("step_count", c_int32),
        ("encode", POINTER(OperationStruct)),
        ("step", POINTER(OperationStruct)),
    ]


class RulesStruct(Structure):
    """`hmc_rules`."""

    _fields_ = [("limit", c_int32), ("min_length", c_int32), ("enough", c_int32), ("penalties", c_void_p)]


QUICK = frozenset({"hmc_keep", "hmc_collect"})
"""Functions that take some microseconds. They keep the interpreter's lock: to get it back would take longer."""


@cache
def best() -> ctypes.CDLL | None:
    """The fastest build that is here and that this processor runs; None where there is none. Raises OSError."""
    available = instructions()
    for name, needed in NEEDS.items():
        path = FOLDER / library_name(name)
        if needed <= available and path.is_file():
            return load(path)
    return None


def instructions() -> frozenset[str]:
    """The instruction sets of the processor, by Linux's names; empty on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(flags.partition(":")[2].split())


def load(path: Path) -> ctypes.CDLL:
    """Loads a library and declares its functions. Raises OSError for a file that is none of this interface, and for one
    whose kernels compute something else on this processor."""
    library = ctypes.CDLL(str(path))
    if library.hmc_interface() != INTERFACE:
        raise OSError(f"{path} has interface {library.hmc_interface()}, not {INTERFACE}")
    if not library.hmc_check():
        raise OSError(f"{path} multiplies wrongly on this processor; report this with the output of `lscpu`")
    declared: dict[str, tuple[Any, list[Any]]] = {
        "hmc_open": (c_int32, [POINTER(ProgramStruct), POINTER(c_void_p)]),
        "hmc_close": (None, [c_void_p]),
        "hmc_level_bytes": (c_int64, [c_void_p]),
        "hmc_batch_open": (c_int32, [c_void_p, c_int32, c_int32, POINTER(c_void_p)]),
        "hmc_batch_close": (None, [c_void_p]),
        "hmc_admit": (c_int32, [c_void_p, c_int32, *[c_void_p] * 5]),
        "hmc_keep": (c_int32, [c_void_p, c_int32, c_void_p]),
        "hmc_run": (c_int32, [c_void_p, *[c_int32] * 3, c_void_p]),
        "hmc_collect": (c_int32, [c_void_p, c_int32, c_int32, *[c_void_p] * 7]),
        "hmc_step": (c_int32, [c_void_p, c_void_p, c_void_p, c_int32, c_void_p, c_int32]),
        "hmc_rank": (c_int32, [c_void_p, *[c_int32] * 4, c_void_p, c_void_p]),
        "hmc_exp": (None, [c_void_p, c_int64]),
        "hmc_reorder": (c_int32, [c_void_p, c_void_p]),
    }
    holding = ctypes.PyDLL(str(path))
    for name, (result, arguments) in declared.items():
        if name in QUICK:
            setattr(library, name, getattr(holding, name))
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library

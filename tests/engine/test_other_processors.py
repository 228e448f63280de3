"""Builds of the native executor for processors that are not here: emulated, with the bits of the reference.

The Arm build needs the package `ziglang`, and QEMU as `qemu-aarch64-static` or `qemu-aarch64`; else it is skipped.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.engine.c_program import CProgram
from tests.engine.test_native import CALIBRATION, LISTS, searched
from tests.engine.test_reference import SOURCES, reference, tiny
from tests.once import Once
from tests.tiny import random_layout, tiny_architecture

from hmc.compiler.calibration.calibrate import calibrate
from hmc.compiler.precisions.int8 import Int8Linears
from hmc.compiler.precisions.linears import FloatLinears, Linears
from hmc.engine.decoding.state import Rules
from hmc.engine.native import library
from hmc.engine.native.build import BUILDS, FLAGS, HERE, build_one, compiler
from hmc.engine.native.build import SOURCES as C_SOURCES
from hmc.engine.native.level import NativeLevel
from hmc.engine.reference import ReferenceLevel

QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
ZIG = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl"]
needs_library = pytest.mark.skipif(library.best() is None, reason="there is no native executor for this machine")
needs_arm = pytest.mark.skipif(
    QEMU is None or find_spec("ziglang") is None, reason="there is no QEMU, or no compiler for Arm"
)
CASES = {
    "int8": (None, 16, True, False),
    "int8, lists": (None, 16, True, True),
    "int8, odd widths": (3, 3, True, False),
    "fp32": (5, 8, False, False),
}
"""Name → seed of the layout, width of a head, whether it is int8, whether sentences have lists."""


def level_of(case: str) -> ReferenceLevel:
    seed, width, quantised, _ = CASES[case]
    arch = tiny_architecture(head_dim=width)
    model = tiny(arch.full_layout() if seed is None else random_layout(arch, seed), arch=arch)
    linears: Linears = Int8Linears(calibrate(model, CALIBRATION).ranges) if quantised else FloatLinears()
    return reference(model, linears)


def _emulated_at(path: Path) -> None:
    command = compiler()
    assert command is not None
    path.mkdir()
    build_one(path / "vnni.so", command, ["-mavx2", "-include", str(Path(__file__).parent / "emulated_vnni.h")])


@needs_library
@pytest.mark.skipif("avx2" not in library.instructions() or compiler() is None, reason="AVX2 and a compiler are needed")
@pytest.mark.parametrize("case", CASES)
def test_avx512_with_vnni(case: str, once: Once) -> None:
    """Every layout and tile of that build; what is emulated is the one instruction."""
    level, best, listed = level_of(case), library.best(), CASES[case][3]
    emulated = library.load(once(_emulated_at) / "vnni.so")
    assert best is not None
    pair = [NativeLevel(each, level.program, level.arch, level.tensors, listed=listed) for each in (best, emulated)]
    lists = LISTS * 4 if listed else []
    for rows in (1, 2, 7):
        ours, theirs = (searched(each, SOURCES * 4, rows, Rules(12), lists=lists) for each in pair)
        assert ours == theirs


def _objects_at(path: Path) -> None:
    """Folders of objects, one for each build."""
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-s") and not flag.startswith("-Wl")]
    sources = [str(HERE / "src" / source) for source in C_SOURCES]
    for build, own in BUILDS["aarch64"].items():
        (path / build).mkdir(parents=True)
        subprocess.run([*ZIG, *flags, "-Werror", *own, "-c", *sources], cwd=path / build, check=True)


@needs_library
@needs_arm
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rows", [1, 3])
def test_arm(case: str, rows: int, tmp_path: Path, once: Once) -> None:
    level, best, listed = level_of(case), library.best(), CASES[case][3]
    assert best is not None
    native = NativeLevel(best, level.program, level.arch, level.tensors, listed=listed)
    program = str(CProgram(level, native, SOURCES, LISTS if listed else [], rows))
    for build in BUILDS["aarch64"]:
        assert run_on_arm(program, once(_objects_at) / build, tmp_path) == "same\n"
    # The planted error: one bit of one logit.
    name = "static const uint32_t expected[] = {"
    start = program.index(name) + len(name)
    number = program[start : program.index("u", start)]
    wrong = program[:start] + str(int(number) ^ 1) + program[start + len(number) :]
    assert run_on_arm(wrong, once(_objects_at) / "neon", tmp_path) == "step: other bits\n"


def run_on_arm(program: str, objects: Path, folder: Path) -> str:
    """What a C program prints on an emulated Arm processor."""
    assert QEMU is not None
    (folder / "program.c").write_text(program, encoding="ascii")
    command = [*ZIG, "-O1", "-I", str(HERE / "src"), "-o", str(folder / "program"), str(folder / "program.c")]
    subprocess.run([*command, *map(str, sorted(objects.glob("*.o"))), "-lm", "-pthread", "-static"], check=True)
    ran = subprocess.run([QEMU, str(folder / "program")], capture_output=True, text=True, check=False)
    assert ran.returncode in (0, 1), ran.stderr
    return ran.stdout

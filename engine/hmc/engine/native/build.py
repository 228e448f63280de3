"""Builds the library from its sources with a C compiler: one build for each kind of processor.

    python engine/hmc/engine/native/build.py [FOLDER]

The compiler is the one that the environment variable CC names, else `cc`, `gcc` or `clang`, else the package
`ziglang`. HEADMASK_MACHINES names the machines of a release, such as `x86_64,aarch64`: their builds are made by
`ziglang` alone, for Linux with glibc 2.28 or later. This file imports nothing of HMC, so that the build of the wheel
can run it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = ("level.c", "pack.c", "forward.c", "linear.c", "attention.c", "candidates.c", "batch.c", "search.c", "team.c")
FLAGS = (
    "-std=gnu11", "-O3", "-fPIC", "-shared", "-s", "-Wl,--build-id=none", "-ffp-contract=off", "-fno-math-errno",
    "-fno-trapping-math", "-fno-strict-aliasing", "-Wall", "-Wextra", "-Wno-psabi",
)  # fmt: skip
"""No product is fused with a sum, so bits are those of the reference on every processor. The same sources give the same
bytes."""
BUILDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "x86_64": {
        "avx2": ("-mavx2",),
        "vnni": ("-mavx2", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni"),
    },
    "aarch64": {"neon": (), "dotprod": ("-mcpu=generic+dotprod",)},
}
"""Machine → build → flags."""
MACHINES = "HEADMASK_MACHINES"
GLIBC = "2.28"
"""The oldest that builds for a release need."""


def machine() -> str:
    """This machine's architecture, by Linux's name."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def machines() -> list[str]:
    """The machines that MACHINES names; none: this one alone. Raises ValueError for one without builds."""
    named = [name for name in os.environ.get(MACHINES, "").split(",") if name]
    for name in named:
        if name not in BUILDS:
            raise ValueError(f"{MACHINES}={','.join(named)}: choose of {', '.join(BUILDS)}")
    return named


def library_name(build: str, of: str | None = None) -> str:
    """The file of a build for a machine; None: for this one."""
    return f"libhmc_{of or machine()}_{build}.so"


def compiler() -> list[str] | None:
    """The command of the C compiler; None where there is none, or none for the machines that are named."""
    if not machines():
        if named := os.environ.get("CC"):
            return named.split()
        for name in ("cc", "gcc", "clang"):
            if path := shutil.which(name):
                return [path]
    return [sys.executable, "-m", "ziglang", "cc", "-fno-sanitize=undefined"] if find_spec("ziglang") else None


def build_one(path: Path, command: Sequence[str], flags: Sequence[str] = ()) -> None:
    """Builds one library. Raises CalledProcessError; what the compiler said goes to stderr."""
    new = path.with_suffix(".new")
    sources = [str(HERE / "src" / source) for source in SOURCES]
    words = [*command, *FLAGS, *flags, "-o", str(new), *sources, "-lm", "-pthread"]
    subprocess.run(words, check=True, stdout=sys.stderr)
    new.replace(path)


def build_all(folder: Path, command: Sequence[str]) -> list[Path]:
    """Builds all libraries for this machine, or for those that are named, into a folder, and returns them; none where
    HMC has none for it. Raises CalledProcessError."""
    built = []
    here = [machine()] if sys.platform == "linux" else []
    for target_machine in machines() or here:
        target = ["-target", f"{target_machine}-linux-gnu.{GLIBC}"] if machines() else []
        for name, flags in BUILDS.get(target_machine, {}).items():
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / library_name(name, target_machine)
            build_one(path, [*command, *target], flags)
            built.append(path)
    return built


def main() -> None:
    """Builds the libraries where HMC looks for them, or into the folder that is named."""
    command = compiler()
    if command is None:
        raise SystemExit("there is no C compiler: install gcc or clang, set CC, or run: pip install ziglang")
    for path in build_all(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "built", command):
        print(path)  # noqa: T201 - it is what was asked for


if __name__ == "__main__":
    main()

"""What is said where CUDA cannot be used: each missing library by its name, told apart from a missing driver and GPU.

The libraries are empty ones that this machine's compiler makes; a process of its own loads them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnxruntime
import pytest
from tests.processes import ROOTS, environment

from hmc.engine.runtime import device
from hmc.engine.runtime.cuda_libraries import CUDA, DRIVER, Library, cuda_problem, required_libraries

COMPILER = shutil.which("g++") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux" or "driver is missing" not in (cuda_problem() or ""),
    reason="needs a C compiler, and a machine without CUDA",
)
CUDART = """
extern "C" {{
int cudaGetDeviceCount(int* count) {{ *count = {count}; return {code}; }}
const char* cudaGetErrorString(int) {{ return "unknown trouble"; }}
}}
"""
MODULE = "hmc.engine.runtime.cuda_libraries"
ASK = "from hmc.engine.runtime.cuda_libraries import cuda_problem; print(cuda_problem({index}))"


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    """A folder with all libraries, which see no device. In its folder `site` is ONNX Runtime alone, which looks beside
    itself for NVIDIA's packages: those of this environment, if it has any, are not seen."""
    for name in (DRIVER, *(library.file for library in required_libraries())):
        compiled(tmp_path / name, CUDART.format(count=0, code=100) if "cudart" in name else "")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "onnxruntime").symlink_to(Path(onnxruntime.__file__).parent)
    return tmp_path


def compiled(path: Path, source: str) -> None:
    """Compiles a shared library."""
    assert COMPILER is not None
    command = [COMPILER, "-shared", "-fPIC", "-x", "c++", "-", "-nostdlib", f"-Wl,-soname,{path.name}", "-o", str(path)]
    subprocess.run(command, input=source.encode(), check=True)


def said_with(libraries: Path, index: int = 0) -> str:
    """What `cuda_problem` returns in a process that finds these libraries, which must print nothing else."""
    path = os.pathsep.join(map(str, (libraries / "site", *ROOTS)))
    command = [sys.executable, "-c", ASK.format(index=index)]
    there = environment(LD_LIBRARY_PATH=str(libraries), PYTHONPATH=path)
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=there)
    assert ran.stdout.count("\n") == 1
    return ran.stdout.strip()


def remove(folder: Path, *names: str) -> None:
    """Removes libraries. Skips the test if the system has one of them elsewhere."""
    for name in names:
        (folder / name).unlink()
        command = [sys.executable, "-c", f"import ctypes; ctypes.CDLL('{name}')"]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            pytest.skip(f"this system has {name}")


@needs_compiler
@pytest.mark.parametrize("library", required_libraries(), ids=lambda library: library.file)
def test_a_missing_library_is_named_with_its_package(libraries: Path, library: Library) -> None:
    remove(libraries, library.file)
    said = said_with(libraries)
    assert said.startswith(f"{library.title} is missing ({library.file}: cannot open shared object file")
    assert f"install {library.package}: pip install 'onnxruntime-gpu[cuda,cudnn]'" in said
    assert not any(other.file in said for other in required_libraries() if other != library)


@needs_compiler
def test_several_missing_libraries_are_all_named(libraries: Path) -> None:
    remove(libraries, "libcublas.so.13", "libcublasLt.so.13", "libcudnn.so.9")
    said = said_with(libraries)
    assert all(f"{title} is missing" in said for title in ("cuBLASLt", "cuBLAS", "cuDNN"))
    assert "install nvidia-cublas nvidia-cudnn-cu13: pip install" in said


@needs_compiler
def test_libraries_in_packages_are_found(libraries: Path) -> None:
    """PyTorch's build for CUDA brings NVIDIA's packages, which no search path of the system names."""
    for library in required_libraries():
        folder = libraries / "site" / "nvidia" / ("cudnn" if "cudnn" in library.file else "cu13") / "lib"
        folder.mkdir(parents=True, exist_ok=True)
        (libraries / library.file).rename(folder / library.file)
    assert said_with(libraries).startswith("the NVIDIA driver is installed but shows this process no GPU")
    remove(libraries / "site" / "nvidia" / "cu13" / "lib", "libcurand.so.10")
    assert said_with(libraries).startswith("cuRAND is missing (libcurand.so.10: cannot open shared object file")


@needs_compiler
def test_without_a_driver_only_the_driver_is_named(libraries: Path) -> None:
    (libraries / DRIVER).unlink()
    assert said_with(libraries).startswith(f"the NVIDIA driver is missing ({DRIVER}: cannot open")


@needs_compiler
@pytest.mark.parametrize(
    ("code", "count", "index", "message"),
    [
        (100, 0, 0, "the NVIDIA driver is installed but shows this process no GPU; check `nvidia-smi`"),
        (0, 0, 0, "the NVIDIA driver is installed but shows this process no GPU; check `nvidia-smi`"),
        (35, 0, 0, "the NVIDIA driver is too old for CUDA 13"),
        (999, 0, 0, "the CUDA runtime cannot start: unknown trouble (error 999)"),
        (0, 1, 1, "there is no cuda:1; this process sees cuda:0 alone"),
        (0, 2, 2, "there is no cuda:2; this process sees cuda:0 to cuda:1"),
        (0, 1, 0, "ONNX Runtime cannot use cuda:0 ("),  # these libraries have no functions
    ],
)
def test_what_the_driver_answers(libraries: Path, code: int, count: int, index: int, message: str) -> None:
    compiled(libraries / "libcudart.so.13", CUDART.format(count=count, code=code))
    assert said_with(libraries, index).startswith(message)


def test_an_onnx_runtime_without_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{MODULE}.onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    assert (
        "built without CUDA; pip uninstall onnxruntime onnxruntime-gpu, and then pip install 'onnxruntime-gpu"
        in str(cuda_problem())
    )
    assert not device.cuda_available()


def test_looking_for_cuda_leaves_stdout_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime prints which libraries it does not find, and the output of `--json` goes there too."""

    def load(name: str) -> None:
        if name != DRIVER:
            raise OSError(f"{name}: not here")

    monkeypatch.setattr(f"{MODULE}.onnxruntime.get_available_providers", lambda: [CUDA])
    monkeypatch.setattr(f"{MODULE}.ctypes.CDLL", load)
    monkeypatch.setattr(f"{MODULE}.onnxruntime.preload_dlls", lambda: print("Failed to load libcublasLt.so.13"))
    before = sys.stdout
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(cuda_problem, [0] * 8))
    assert len(found) == 1
    assert "cuBLASLt is missing (libcublasLt.so.13: not here)" in str(found.pop())
    assert sys.stdout is before
    assert capfd.readouterr().out == ""

"""Bytes on a device, counted over stand-ins for CUDA's libraries, which compute nothing: one copy of the weights,
nothing left behind, refusals, replicas, and servers that lack a library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.bundles import bundle_at
from tests.once import Once
from tests.processes import REPOSITORY, ROOTS, environment
from tests.support.trained import CHECKPOINT

pytestmark = [pytest.mark.slow, pytest.mark.cuda_counts, pytest.mark.usefixtures("counting_libraries")]
SCRIPT = Path(__file__).with_name("stand_in.py")


@pytest.fixture(scope="module")
def bundle(once: Once) -> Path:
    """The embedded model with all heads and with a quarter of them, for both kinds of device."""
    return once(bundle_at, CHECKPOINT, (None, 36), ("fp32", "fp16"))


def counted(libraries: Path, measure: str, bundle: Path, **changes: str) -> dict[str, Any]:
    """What a function of `stand_in.py` returns. changes: of its environment.

    glibc fills new memory with a value, so whatever reads memory that nothing has written gets no convenient zeros.
    """
    command = [sys.executable, str(SCRIPT), measure, str(bundle)]
    roots = os.pathsep.join(map(str, (REPOSITORY, *ROOTS)))
    perturbed = {"GLIBC_TUNABLES": "glibc.malloc.perturb=90", "PYTHONPATH": roots}
    settings = environment(LD_LIBRARY_PATH=str(libraries), **perturbed, **changes)
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=settings)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_two_levels_with_all_graphs_have_one_copy_of_the_weights(counting_libraries: Path, bundle: Path) -> None:
    found = counted(counting_libraries, "weights", bundle)
    assert found["one"] <= found["held"] <= 1.15 * found["one"]
    assert 0.98 * found["one"] <= found["account"] <= found["one"]  # tables of whole numbers stay in their sessions
    assert found["shared"] > 0
    assert found["on_host"] == 0
    assert (found["left"], found["account_left"]) == (0, 0)


def test_unloading_reloading_and_closing_give_memory_back(counting_libraries: Path, bundle: Path) -> None:
    found = counted(counting_libraries, "life", bundle)
    assert found["unloaded"] < found["started"]
    assert max(found["reloaded"]) - min(found["reloaded"]) <= 2**16  # 4 KiB come and go from one reload to the next
    assert found["closed"] <= 2**20
    assert found["account"] == 0


def test_sessions_run_and_come_and_go_in_turns_on_the_device(counting_libraries: Path, bundle: Path) -> None:
    """At any other time they could end the capture of a graph by another level."""
    found = counted(counting_libraries, "outside", bundle)
    assert found["outside"] == []
    assert found["seen"]["opened"] == found["seen"]["freed"] > 20
    assert found["seen"]["run"] > 100
    assert found["failed"] == [0, found["kinds"], 0]
    assert found["seen"]["loads failed"] == 1


def test_a_level_that_does_not_fit_is_refused_and_leaves_nothing(counting_libraries: Path, bundle: Path) -> None:
    found = counted(counting_libraries, "budget", bundle)
    assert "cuda:0 has too little memory for weights of level full-fp16: needed 9.6 MiB, free on" in found["said"]
    assert "budget 2.9 MiB, of which 0.0 MiB are in use" in found["said"]
    assert found["left"] == 0
    assert found["default"] == pytest.approx(0.8 * 150e9, rel=0.01)  # the stand-ins have 150 GB


@pytest.mark.skipif(shutil.which("g++") is None, reason="a second device needs a compiler")
def test_every_replica_has_weights_of_its_own(counting_libraries: Path, bundle: Path, tmp_path: Path) -> None:
    second, source = tmp_path / "second.so", 'extern "C" int cudaGetDeviceCount(int* n) { *n = 2; return 0; }'
    subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", second], input=source.encode(), check=True)
    found = counted(counting_libraries, "replicas", bundle, LD_PRELOAD=str(second))
    assert found["device"] == "cuda:0,cuda:1"
    assert found["accounts"][0] == found["accounts"][1] > 0
    assert found["weights"] == sum(found["accounts"])
    assert found["caches"][0] == found["caches"][1] > found["accounts"][0]  # each was warmed up


def test_a_server_without_cudnn_names_it(counting_libraries: Path, bundle: Path, tmp_path: Path) -> None:
    incomplete = tmp_path / "libraries"
    shutil.copytree(counting_libraries, incomplete)
    (incomplete / "libcudnn.so.9").unlink()
    command = [sys.executable, "-m", "hmc.cli", "serve", str(bundle), "--port", "0", "--json", "--device"]
    settings = environment(LD_LIBRARY_PATH=str(incomplete))
    ran = subprocess.run([*command, "cuda"], capture_output=True, text=True, check=False, env=settings, timeout=600)
    assert ran.returncode == 2, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "cuDNN is missing (libcudnn.so.9: cannot open shared object file" in ran.stderr
    assert "install nvidia-cudnn-cu13" in ran.stderr
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, "auto"], stdout=pipe, stderr=pipe, text=True, env=settings) as p:
        assert p.stdout is not None
        assert p.stderr is not None
        served = json.loads(p.stdout.readline() or "{}")
        p.terminate()
        said = p.stderr.read()
    assert served["levels"] == ["full", "h36"], said
    assert "level full-fp16 is left out: level 'full-fp16' on auto: cuDNN is missing" in said

"""Shared fixtures: a tiny model with deterministic weights as checkpoint and bundle, and the optional corpora."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.artifact.marian.opus import opus_directory
from tests.bundles import bundle_at
from tests.once import Once
from tests.processes import REPOSITORY
from tests.support.files import write_lines
from tests.tiny import LEVELS, tiny_checkpoint_at

pytest_plugins = ["tests.lively"]

settings.register_profile("hmc", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("hmc")  # how fast a machine is fails no property; what fails says how to find it again


def _ensure_home() -> None:
    """A user without a home that can be written gets one for the tests: Chromium, Node and hadolint need it."""
    try:
        writable = os.access(Path.home(), os.W_OK)
    except RuntimeError:  # neither HOME nor an entry of the user
        writable = False
    if not writable:
        os.environ["HOME"] = tempfile.mkdtemp(prefix="hmc-tests-")
        atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)


_ensure_home()  # before any test is imported: some ask for a home then

FEW = {
    "A man.": "Ein Mann.",
    "A dog runs.": "Ein Hund läuft.",
    "Two women.": "Zwei Frauen.",
    "A red car.": "Ein rotes Auto.",
}
"""A test set of four sentences."""


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are no name: packed ones may hold the time, and processes that run tests together must agree on names."""
    return argname if isinstance(val, bytes) else None


_OWN = {name: getattr(gc, name) for name in ("freeze", "unfreeze", "get_freeze_count")}
"""The functions of the collector."""


def pytest_collection_finish() -> None:
    """Collecting garbage skips all tests and what they have imported, which stay to the end: hosts collect it whenever
    a level leaves. They see nothing frozen, as before they serve."""
    gc.collect()
    gc.freeze()
    gc.freeze = gc.unfreeze = lambda: None
    gc.get_freeze_count = lambda: 0


@pytest.fixture
def own_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The collector of a process that has frozen nothing yet, and can."""
    for name, function in _OWN.items():
        monkeypatch.setattr(gc, name, function)
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def weight_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Packed weights of the models of these tests do not stay on the machine."""
    os.environ["HMC_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Once]:
    """Makes folders that tests only read, once for all processes of this run."""
    base = tmp_path_factory.getbasetemp()
    made = Once((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "once")
    yield made
    made.check()


@pytest.fixture(scope="session")
def tiny_checkpoint(once: Once) -> Path:
    """A checkpoint of 24 heads (2 + 2 layers, 4 heads) with gates; random weights, real tokenizer."""
    return once(tiny_checkpoint_at)


@pytest.fixture(scope="session")
def tiny_bundle(tiny_checkpoint: Path, once: Once) -> Path:
    """A bundle with levels full, h12, h5 in fp32 and int8. Read-only: copy it before changing anything."""
    return once(bundle_at, tiny_checkpoint, LEVELS, ("fp32", "int8"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The top folder of the checkout."""
    return REPOSITORY


@pytest.fixture
def src(tmp_path: Path) -> Path:
    """Source sentences of a small test set."""
    path = tmp_path / "set.en"
    write_lines(path, FEW)
    return path


@pytest.fixture
def ref(tmp_path: Path) -> Path:
    """References of the small test set."""
    path = tmp_path / "set.de"
    write_lines(path, FEW.values())
    return path


@pytest.fixture
def opus(tmp_path: Path) -> Path:
    """A tiny MarianMT directory in the layout of OPUS-MT, which a test may change."""
    opus_directory(tmp_path / "opus")
    return tmp_path / "opus"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of 256 KiB; tests that need it skip where this user may not mount."""
    folder = tmp_path / "small-disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no command `mount`")
    if ran.returncode:
        pytest.skip(f"this user may not mount a file system: {ran.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a CUDA device."""
    monkeypatch.setattr("hmc.engine.runtime.device.cuda_problem", lambda _=0: "the NVIDIA driver is missing")


@pytest.fixture(scope="session")
def data() -> Path:
    """Folder of the optional corpora, from HMC_DATA; tests that need it skip without."""
    folder = os.environ.get("HMC_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("HMC_DATA does not name a folder with the optional corpora (multi30k/ …)")
    return Path(folder)


@pytest.fixture(scope="session")
def counting_libraries() -> Path:
    """Folder of stand-ins for CUDA's libraries, from HMC_CUDA_COUNTING; tests that count over them skip without."""
    folder = os.environ.get("HMC_CUDA_COUNTING")
    if not folder or not (Path(folder) / "libcudart.so.13").is_file():
        pytest.skip("HMC_CUDA_COUNTING does not name a folder of stand-ins for CUDA's libraries (libcudart.so.13 …)")
    return Path(folder).resolve()

"""The wheel holds all of `hmc/` and the options of protovalidate, and nothing else at its top level."""

import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from hmc.artifact.distribution import VERSION

pytestmark = pytest.mark.slow

ROOTS = ("protos", "compiler", "training", "engine", "serving", "benchmark", "pipelines", "cli")


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_only_hmc_and_the_options_of_its_protocol_are_at_the_top(names: set[str]) -> None:
    tops = {name.split("/", 1)[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"hmc", "buf"}
    assert "buf/validate/validate_pb2.py" in names


def test_every_file_of_every_room_is_in_it(repository: Path, names: set[str]) -> None:
    files = {
        path.relative_to(repository / root).as_posix()
        for root in ROOTS
        for path in (repository / root / "hmc").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.startswith("hmc/")} == files


def test_experiments_are_in_the_source_distribution_only(repository: Path, names: set[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(repository)]
    subprocess.run(command, capture_output=True, check=True)
    (path,) = tmp_path.glob("headmask-*.tar.gz")
    with tarfile.open(path) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert {"experiments/sizes.py", "experiments/peers/engines.py", "tests/tiny.py", "pyproject.toml"} <= files
    assert not [name for name in names if name.startswith("experiments")]


def test_demo_data_stubs_and_markers_are_in_it(names: set[str]) -> None:
    assert "hmc/cli/demo_data/test.en" in names
    assert "hmc/v1/translation.proto" in names
    assert "hmc/v1/translation_pb2_grpc.py" in names
    assert "hmc/serving/py.typed" in names
    assert "hmc/__init__.py" not in names


def test_metadata_keeps_the_base_light(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(path).decode())
    assert (metadata["Name"], metadata["Version"]) == ("headmask", VERSION)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra", [])) == {
        "compile",
        "train",
        "plot",
        "demo",
        "hub",
        "bulk",
        "ray",
        "tracing",
        "peers",
        "docs",
        "dev",
    }
    base = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    heavy = ("torch", "onnx>", "onnx-ir", "datasets", "lightning", "matplotlib")
    assert not [line for line in base if line.startswith(heavy)]

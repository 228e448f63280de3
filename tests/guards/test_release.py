"""What a release consists of: archives of the same bytes each time, bills of materials, and files for the forge."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zipfile
from email.message import Message
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tests.processes import REPOSITORY

from hmc.artifact.distribution import VERSION
from hmc.engine.native.build import BUILDS, compiler, library_name, machine

SCHEMAS = {
    "vendor.citation-file-format": ["CITATION.cff"],
    "vendor.github-issue-forms": [".github/ISSUE_TEMPLATE/bug.yml", ".github/ISSUE_TEMPLATE/wish.yml"],
    "vendor.github-issue-config": [".github/ISSUE_TEMPLATE/config.yml"],
}


@pytest.fixture(scope="module")
def release() -> Any:
    """The script .ci/release.py as a module."""
    spec = importlib.util.spec_from_file_location("release", REPOSITORY / ".ci" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_archives_have_the_same_bytes_each_time(
    release: Any, wheel: Path, wheel_for_cpus: Path, copying: dict[str, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Built from the checkout, from its source distribution, and the wheels once more by another call. The native
    executor is compiled in two folders; the wheels for CPUs hold copies of it."""
    sdist, again = release.build_twice(REPOSITORY, tmp_path)
    assert sdist.name == f"headmask-{VERSION}.tar.gz"
    assert again.read_bytes() == wheel.read_bytes()
    for name, value in copying.items():
        monkeypatch.setenv(name, value)
    assert release.build_for_cpus(REPOSITORY, tmp_path).read_bytes() == wheel_for_cpus.read_bytes()
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    with pytest.raises(release.ReleaseError, match=r"this source distribution is for gpu; build from a checkout"):
        release.build_for_cpus(unpacked, tmp_path / "again")


def test_the_wheel_has_the_native_executor(wheel: Path) -> None:
    if compiler() is None or machine() not in BUILDS:
        pytest.skip("it is built by a C compiler, for machines that it has builds for")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"hmc/engine/native/built/{library_name(build)}" for build in BUILDS[machine()]} <= names
    assert "hmc/engine/native/src/level.c" in names


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ziglang") is None, reason="builds for other machines need the package ziglang")
def test_one_wheel_for_all_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its libraries in it, and no others are needed, so its tag names no machine."""
    monkeypatch.setenv("HEADMASK_MACHINES", "x86_64,aarch64")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(REPOSITORY)]
    subprocess.run(command, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(tmp_path / f"headmask-{VERSION}-py3-none-any.whl") as archive:
        for name in ("x86_64", "aarch64"):
            for build in BUILDS[name]:
                library = archive.read(f"hmc/engine/native/built/{library_name(build, name)}")
                assert library[:4] == b"\x7fELF"
                assert int.from_bytes(library[18:20], "little") == {"x86_64": 62, "aarch64": 183}[name]


def test_machines_without_builds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADMASK_MACHINES", "x86_64,sparc")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(REPOSITORY)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode != 0
    assert "HEADMASK_MACHINES=x86_64,sparc: choose of x86_64, aarch64" in ran.stdout + ran.stderr


def test_the_wheels_differ_in_the_runtime_alone(release: Any, wheel: Path, wheel_for_cpus: Path) -> None:
    usual, for_cpus = (
        {line for line in release.metadata_of(each).get_all("Requires-Dist") if "extra ==" not in line}
        for each in (wheel, wheel_for_cpus)
    )
    assert {line.partition("<")[0] for line in usual - for_cpus} == {"onnxruntime-gpu", "onnxruntime"}
    assert for_cpus - usual == {"onnxruntime<2,>=1.31"}
    assert release.metadata_of(wheel_for_cpus)["Version"] == f"{VERSION}+cpu"


def test_another_runtime_is_refused(release: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADMASK_RUNTIME", "tpu")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(REPOSITORY)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode != 0
    assert "HEADMASK_RUNTIME=tpu: choose gpu or cpu" in ran.stdout + ran.stderr


def test_other_bytes_stop_a_release(release: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    build, built = release.build, list[Path]()

    def small(_: Path, out: Path) -> tuple[Path, Path]:
        """A build that notes how many there were before it."""
        source = tmp_path / f"source-{len(built)}"
        source.mkdir()
        (source / "pyproject.toml").write_text(
            f'[project]\nname = "headmask"\nversion = "1"\ndescription = "{len(built)}"\n'
            '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
            '[tool.hatch.build.targets.wheel]\nbypass-selection = true\n'
        )  # fmt: skip
        built.append(source)
        return build(source, out)  # type: ignore[no-any-return]

    monkeypatch.setattr(release, "build", small)
    with pytest.raises(release.ReleaseError, match=r"headmask-1.tar.gz is not reproducible"):
        release.build_twice(tmp_path, tmp_path / "out")


def test_what_a_server_needs_is_small(release: Any, wheel: Path) -> None:
    requirements = release.metadata_of(wheel).get_all("Requires-Dist")
    serve = release.needed(requirements, release.BILLS["serve"], "headmask")
    every = release.needed(requirements, release.BILLS["all"], "headmask")
    assert {"numpy", "grpcio", "pydantic-core"} <= serve < every
    assert not {"torch", "onnx", "matplotlib", "pytest"} & serve
    assert {"torch", "onnx", "matplotlib", "sympy"} <= every
    assert "pytest" not in every


def test_a_bill_is_of_one_wheel_and_what_it_needs(release: Any, wheel: Path) -> None:
    bill = {
        "metadata": {"tools": {}},
        "components": [
            {"bom-ref": "a", "name": "A_b", "version": "1", "licenses": [{"license": {"id": "MIT"}}]},
            {"bom-ref": "c", "name": "c", "version": "2", "licenses": [{"expression": "MIT OR Zlib"}]},
            {"bom-ref": "own", "name": "pytest", "version": "3"},
        ],
        "dependencies": [{"ref": "a", "dependsOn": ["c", "own"]}, {"ref": "c"}, {"ref": "own", "dependsOn": ["a"]}],
    }
    root = release.component_of(wheel)
    assert root["purl"] == f"pkg:pypi/headmask@{VERSION}"
    assert root["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    found = release.restricted(bill, {"a-b", "c"}, root, {"a-b"})
    assert [each["name"] for each in found["components"]] == ["A_b", "c"]
    assert found["dependencies"] == [
        {"ref": "a", "dependsOn": ["c"]},
        {"ref": "c", "dependsOn": []},
        {"ref": root["bom-ref"], "dependsOn": ["a"]},
    ]
    assert "| A_b | 1 | MIT |\n| c | 2 | MIT OR Zlib |\n" in release.licence_table(found)


def test_a_licence_that_is_not_declared_is_not_made_up(release: Any) -> None:
    assert release.licence({"name": "pytest", "licenses": [{"license": {"name": "License :: MIT"}}]}) == "MIT"
    assert release.licence({"name": "promql-parser"}) == "not declared; see LICENSE"
    with pytest.raises(release.ReleaseError, match="no-such-package is not installed; run `make test` once"):
        release.licence({"name": "no-such-package"})


class Strict(Message):
    """Metadata of a package, as later versions of Python are to give it."""

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return super().__getitem__(name)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "not declared; see its source"),
        ({"License-File": "COPYING"}, "not declared; see COPYING"),
        ({"License": "MIT\n\nPermission is …"}, "MIT"),
    ],
)
def test_a_missing_field_of_metadata_is_not_read(
    release: Any, monkeypatch: pytest.MonkeyPatch, fields: dict[str, str], said: str
) -> None:
    metadata = Strict()
    for name, value in fields.items():
        metadata[name] = value
    monkeypatch.setattr(release, "installed", lambda _: SimpleNamespace(metadata=metadata))
    assert release.licence({"name": "a"}) == said


def test_files_of_the_forge_follow_their_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    check = pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed")
    monkeypatch.chdir(REPOSITORY)
    for schema, paths in SCHEMAS.items():
        ran = CliRunner().invoke(check.main, ["--builtin-schema", schema, *paths])
        assert ran.exit_code == 0, ran.output


def test_the_classifiers_are_the_versions_that_were_tried(release: Any, wheel: Path) -> None:
    said = release.metadata_of(wheel).get_all("Classifier")
    claimed = [line.rpartition(" :: ")[2] for line in said if re.fullmatch(r"Programming .* :: 3\.\d+", line)]
    page = (REPOSITORY / "docs" / "support.md").read_text(encoding="utf-8")
    assert claimed == re.findall(r"^\| (3\.\d+)\.\d+ \| works \|", page, re.MULTILINE)


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == VERSION

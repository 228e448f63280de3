"""Bundles: validation reports every problem at once; levels are found by name and by head count."""

import errno
import hashlib
import json
import shutil
from pathlib import Path

import pytest
from tests.manifests import changed_manifest

from hmc.artifact import InvalidArtifactError, InvalidRequestError, bundle_problems, read_manifest, validate
from hmc.artifact.bundle.manifest import check_level_name, write_manifest
from hmc.artifact.errors import LevelNotFoundError


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A copy of the tiny bundle, for tests that damage it."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


def test_compiled_bundle_is_valid(tiny_bundle: Path) -> None:
    manifest = validate(tiny_bundle)
    assert [level.name for level in manifest.levels] == ["full", "full-int8", "h12", "h12-int8", "h5", "h5-int8"]
    assert [level.heads for level in manifest.levels] == [24, 24, 12, 12, 5, 5]


def test_every_problem_is_reported_at_once(bundle: Path) -> None:
    (bundle / "h12" / "encoder.onnx").unlink()
    weight = next((bundle / "weights").iterdir())
    weight.write_bytes(weight.read_bytes()[:-1] + b"x")
    with changed_manifest(bundle) as raw:
        raw["levels"][0]["head_layout"]["cross"][0] = [0, 77]
        raw["default_level"] = "nothing"
    problems = "\n".join(bundle_problems(bundle))
    for expected in (
        "h12/encoder.onnx is missing",
        f"weights/{weight.name} has sha256",
        "head 77",
        "default level 'nothing'",
    ):
        assert expected in problems
    with pytest.raises(InvalidArtifactError, match="hmc compile"):
        validate(bundle)


def test_future_schema_says_upgrade(bundle: Path) -> None:
    raw = json.loads((bundle / "bundle.json").read_text()) | {"schema_version": 99, "new_field": 1}
    (bundle / "bundle.json").write_text(json.dumps(raw))
    with pytest.raises(InvalidArtifactError, match=r"version 99.*\n.*Upgrade hmc"):
        validate(bundle)


def test_unknown_field_is_refused(bundle: Path) -> None:
    with changed_manifest(bundle) as raw:
        raw["colour"] = "red"
    with pytest.raises(InvalidArtifactError, match="colour"):
        validate(bundle)


def test_what_is_recorded_later_is_part_of_the_digest(bundle: Path) -> None:
    before = read_manifest(bundle)
    before.default_level = "h5"
    write_manifest(before, bundle)
    assert validate(bundle).digest != before.digest


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"schema_version": ' + b"9" * 5000 + b"}", b"\xff"])
def test_what_is_no_json(bundle: Path, content: bytes) -> None:
    (bundle / "bundle.json").write_bytes(content)
    with pytest.raises(InvalidArtifactError, match=r"bundle\.json is not JSON"):
        validate(bundle)


def test_files_that_cannot_be_read(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("hmc.artifact.bundle.checks.sha256_file", refuse)
    assert "h12/decoder.onnx cannot be read: Permission denied" in bundle_problems(bundle)
    with changed_manifest(bundle) as raw:
        raw["levels"][0]["files"]["x" * 5000] = "0" * 64
    assert any("cannot be read: File name too long" in problem for problem in bundle_problems(bundle))
    with pytest.raises(InvalidArtifactError, match=r"bundle\.json cannot be read: File name too long"):
        validate(Path("x" * 5000))


def test_path_outside_the_bundle_is_refused(bundle: Path) -> None:
    with changed_manifest(bundle) as raw:
        raw["levels"][0]["files"]["../secret"] = "0" * 64
    assert any("leaves the bundle" in problem for problem in bundle_problems(bundle))


def test_a_folder_that_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(InvalidArtifactError, match=r"bundle\.json is missing"):
        validate(tmp_path)


def test_levels_by_name(tiny_bundle: Path) -> None:
    manifest = read_manifest(tiny_bundle)
    assert manifest.level("h5").heads == 5
    with pytest.raises(LevelNotFoundError, match=r"'h7'.*full.*h12"):
        manifest.level("h7")


def test_weights_that_a_graph_reads_must_be_listed(bundle: Path) -> None:
    """An unlisted weight file has no digest, so its loss would not be noticed."""
    with changed_manifest(bundle) as raw:
        for level in raw["levels"]:
            weight = next(name for name in level["files"] if name.startswith("weights/") and name.endswith(".bin"))
            del level["files"][weight]
    found = bundle_problems(bundle)
    assert found
    assert all(" reads weights/" in problem and problem.endswith(".bin, which is not listed") for problem in found)
    removed = {problem.split(" reads ")[1].partition(",")[0] for problem in found}
    for name in removed:
        (bundle / name).unlink()
    with pytest.raises(InvalidArtifactError, match=r"reads weights/\w+\.bin, which is not listed, and is missing"):
        validate(bundle)


def test_one_file_with_two_digests(bundle: Path) -> None:
    with changed_manifest(bundle) as raw:
        first, second = raw["levels"][:2]
        shared = next(name for name in second["files"] if name in first["files"])
        first["files"][shared] = "0" * 64
    assert any(f"{shared} is listed with two digests, 000000000000… and " in p for p in bundle_problems(bundle))


def test_a_graph_that_is_no_graph(bundle: Path) -> None:
    level = read_manifest(bundle).levels[0].name
    content = b"\xff\xff no ONNX"
    (bundle / level / "decoder.onnx").write_bytes(content)
    with changed_manifest(bundle) as raw:
        raw["levels"][0]["files"][f"{level}/decoder.onnx"] = hashlib.sha256(content).hexdigest()
    assert any(f"{level}/decoder.onnx: not an ONNX file" in problem for problem in bundle_problems(bundle))


@pytest.mark.parametrize(
    "name", ["../../../x", "a/b", "", ".hidden", "weights", "bundle.json", "tokenizer.model", "x\n"]
)
def test_names_that_no_level_can_have(bundle: Path, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"is no name for a level|a level cannot be called"):
        check_level_name(name)
    with changed_manifest(bundle) as raw:
        raw["levels"][0]["name"] = name
    with pytest.raises(InvalidArtifactError, match=r"levels\.0\.name: .*(is no name for a level|cannot be called)"):
        read_manifest(bundle)

"""Bundles: validation reports every problem at once; levels are found by name and by head count."""

import errno
import json
import shutil
from pathlib import Path

import pytest
from tests.manifests import changed_manifest
from tests.tiny import SENTENCES

from hmc.artifact.bundle import read_manifest, write_manifest
from hmc.artifact.bundle_checks import bundle_problems, validate
from hmc.artifact.errors import InvalidArtifactError, LevelNotFoundError
from hmc.serving import Translator
from hmc.serving.options import DecodeOptions


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
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


def test_bundles_of_schema_2_are_read_and_translate(bundle: Path) -> None:
    """They knew neither shortlists nor the greedy decoder."""
    expected = _greedy(bundle)
    raw = json.loads((bundle / "bundle.json").read_text()) | {"schema_version": 2}
    del raw["digest"]
    for level in raw["levels"]:
        del level["shortlist"]
        del level["files"][f"{level['name']}/decoder_greedy.onnx"]
        (bundle / level["name"] / "decoder_greedy.onnx").unlink()
    (bundle / "bundle.json").write_text(json.dumps(raw))
    assert not any(level.shortlist for level in validate(bundle).levels)
    assert _greedy(bundle) == expected


def _greedy(bundle: Path) -> list[str]:
    with Translator(bundle, "full", device="cpu", threads=1, cache="none") as translator:
        found = translator.translate(SENTENCES, DecodeOptions(beam_size=1, max_length=12))
    return [translation.text for translation in found]


def test_unknown_field_is_refused(bundle: Path) -> None:
    with changed_manifest(bundle) as raw:
        raw["colour"] = "red"
    with pytest.raises(InvalidArtifactError, match="colour"):
        validate(bundle)


@pytest.mark.parametrize("version", [3, 4])
def test_a_manifest_that_was_changed_is_refused(bundle: Path, version: int) -> None:
    """One digit of pad_id translates other words, and nothing else would tell."""
    raw = json.loads((bundle / "bundle.json").read_text())
    raw["architecture"]["pad_id"], raw["schema_version"] = 3, version
    if version == 3:  # they had no digest
        del raw["digest"]
    (bundle / "bundle.json").write_text(json.dumps(raw))
    expected = [] if version == 3 else ["bundle.json is not as it was written: its digest differs"]
    assert bundle_problems(bundle) == expected


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

    monkeypatch.setattr("hmc.artifact.bundle_checks.sha256_file", refuse)
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


def test_levels_by_name_and_by_heads(tiny_bundle: Path) -> None:
    manifest = read_manifest(tiny_bundle)
    assert manifest.level("h5").heads == 5
    assert manifest.level_with_at_most(20).name == "h12"
    with pytest.raises(LevelNotFoundError, match=r"'h7'.*full.*h12"):
        manifest.level("h7")
    with pytest.raises(LevelNotFoundError, match="smallest is 'h5'"):
        manifest.level_with_at_most(4)

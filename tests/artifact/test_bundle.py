"""Bundles: validation reports every problem at once; levels are found by name and by head count."""

import json
import shutil
from pathlib import Path

import pytest
from tests.tiny import SENTENCES

from hmc.artifact.bundle import read_manifest
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
    raw = json.loads((bundle / "bundle.json").read_text())
    raw["levels"][0]["head_layout"]["cross"][0] = [0, 77]
    raw["default_level"] = "nothing"
    (bundle / "bundle.json").write_text(json.dumps(raw))
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
    raw = json.loads((bundle / "bundle.json").read_text()) | {"colour": "red"}
    (bundle / "bundle.json").write_text(json.dumps(raw))
    with pytest.raises(InvalidArtifactError, match="colour"):
        validate(bundle)


def test_path_outside_the_bundle_is_refused(bundle: Path) -> None:
    raw = json.loads((bundle / "bundle.json").read_text())
    raw["levels"][0]["files"]["../secret"] = "0" * 64
    (bundle / "bundle.json").write_text(json.dumps(raw))
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
